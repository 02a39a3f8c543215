"""tf.contrib.distribute: the strategies, as `tf.distribute` has them today."""

import tensorflow.compat.v1 as tf

AllReduceCrossDeviceOps = tf.distribute.HierarchicalCopyAllReduce
MirroredStrategy = tf.distribute.MirroredStrategy
OneDeviceStrategy = tf.distribute.OneDeviceStrategy
ParameterServerStrategy = tf.distribute.experimental.ParameterServerStrategy
CollectiveAllReduceStrategy = tf.distribute.experimental.MultiWorkerMirroredStrategy
get_cross_tower_context = tf.distribute.get_strategy
get_tower_context = tf.distribute.get_replica_context
has_distribution_strategy = tf.distribute.has_strategy
