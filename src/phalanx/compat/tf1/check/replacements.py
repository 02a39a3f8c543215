"""What works differently under --tf1, and what replaces TensorFlow 1's names in a modern program.

A key is a name, or the beginning of names if it ends with a dot. The longest that matches counts.
"""

from collections.abc import Mapping

DIFFERENT: Mapping[str, str] = {
    "tensorflow.VERSION": "it is 1.15.0",
    "tensorflow.__version__": "it is 1.15.0",
    **{
        f"tensorflow.contrib.data.{name}": "a tf.data.Dataset with the old arguments of map"
        for name in ("Dataset", "FixedLengthRecordDataset", "TFRecordDataset", "TextLineDataset")
    },
    "tensorflow.contrib.distribute.": "RunConfig takes MirroredStrategy, or parameter servers",
    **{
        f"tensorflow.contrib.layers.{name}": "only the arguments that programs used most"
        for name in ("batch_norm", "optimize_loss", "separable_conv2d", "separable_convolution2d")
    },
    "tensorflow.contrib.slim.learning.train": "a MonitoredTrainingSession instead of a Supervisor",
    "tensorflow.keras.": "Keras 2 (tf-keras)",
    "tensorlayer.DistributedSession": "stop_grace_period_secs is 5; device filters are added",
    "tensorlayer.distributed.DistributedSession": (
        "stop_grace_period_secs is 5; device filters are added"
    ),
    "tensorlayer.distributed.LoadCheckpoint": (
        "in a DistributedSession only the master loads, and only at step 0"
    ),
    "tensorlayer.distributed.TaskSpec": "without a cluster, it is the task of a single process",
}

MODERN: Mapping[str, str] = {
    "numpy.ndarray.tostring": "tobytes",
    "tensorflow.ConfigProto": "tf.config",
    "tensorflow.Graph": "none: TensorFlow 2 runs eagerly",
    "tensorflow.GraphKeys.": "model.trainable_weights and the like",
    "tensorflow.Session": "none: TensorFlow 2 runs eagerly",
    "tensorflow.app.": "argparse; phalanx.RunConfig.add_flags",
    "tensorflow.flags.": "argparse; phalanx.RunConfig.add_flags",
    "tensorflow.contrib.data.": "tf.data",
    "tensorflow.contrib.distribute.": "tf.distribute; phalanx.run",
    "tensorflow.contrib.estimator.": "phalanx.Experiment, phalanx.run: see from-estimator.md",
    "tensorflow.contrib.framework.": "the weights of the Keras model; session.step",
    "tensorflow.contrib.framework.add_arg_scope": "functools.partial",
    "tensorflow.contrib.framework.arg_scope": "functools.partial",
    "tensorflow.contrib.layers.": "keras.layers",
    "tensorflow.contrib.layers.l1_regularizer": "keras.regularizers.L1",
    "tensorflow.contrib.layers.l2_regularizer": "keras.regularizers.L2",
    "tensorflow.contrib.layers.optimize_loss": "an optimizer of Keras",
    "tensorflow.contrib.layers.variance_scaling_initializer": "keras.initializers.VarianceScaling",
    "tensorflow.contrib.layers.xavier_initializer": "keras.initializers.GlorotUniform",
    "tensorflow.contrib.layers.xavier_initializer_conv2d": "keras.initializers.GlorotUniform",
    "tensorflow.contrib.learn.": "phalanx.Experiment, phalanx.run",
    "tensorflow.contrib.learn.RunConfig": "phalanx.RunConfig",
    "tensorflow.contrib.legacy_seq2seq.": "keras.losses.SparseCategoricalCrossentropy",
    "tensorflow.contrib.metrics.": "keras.metrics",
    "tensorflow.contrib.rnn.": "keras.layers.LSTM and the like",
    "tensorflow.contrib.seq2seq.": "keras.losses.SparseCategoricalCrossentropy",
    "tensorflow.contrib.slim.": "keras.layers",
    "tensorflow.contrib.slim.evaluation.": "phalanx evaluate",
    "tensorflow.contrib.slim.learning.": "phalanx.Experiment, phalanx.run",
    "tensorflow.contrib.tensorboard.": "tensorboard.plugins.projector",
    "tensorflow.contrib.training.HParams": "arguments of the experiment; a dataclass",
    "tensorflow.core.": "a public name of TensorFlow",
    "tensorflow.data.Iterator": "iterate over the dataset",
    "tensorflow.estimator.": "phalanx.Experiment, phalanx.run: see from-estimator.md",
    "tensorflow.estimator.RunConfig": "phalanx.RunConfig",
    "tensorflow.estimator.train_and_evaluate": "phalanx.run",
    "tensorflow.feature_column.": "keras.utils.FeatureSpace, or Keras' preprocessing layers",
    "tensorflow.gfile.": "tf.io.gfile",
    "tensorflow.global_variables_initializer": "none: variables are initialized when created",
    "tensorflow.get_variable": "a weight of a Keras layer",
    "tensorflow.layers.": "keras.layers",
    "tensorflow.logging.": "logging",
    "tensorflow.losses.": "keras.losses",
    "tensorflow.metrics.": "keras.metrics",
    "tensorflow.nn.rnn_cell.": "keras.layers.LSTMCell and the like",
    "tensorflow.placeholder": "keras.Input, or an argument of a function",
    "tensorflow.python.": "a public name of TensorFlow",
    "tensorflow.python.training.": "phalanx.hooks, phalanx.DistributedSession",
    "tensorflow.python_io.": "phalanx.records; tf.io.TFRecordWriter",
    "tensorflow.summary.": "session.summaries in a hook; tf.summary of TensorFlow 2",
    "tensorflow.train.AdagradOptimizer": "keras.optimizers.Adagrad",
    "tensorflow.train.AdamOptimizer": "keras.optimizers.Adam",
    "tensorflow.train.Checkpoint": "tf.train.Checkpoint",
    "tensorflow.train.ClusterSpec": "phalanx.TaskSpec; TF_CONFIG",
    "tensorflow.train.Example": "phalanx.records; tf.train.Example",
    "tensorflow.train.GradientDescentOptimizer": "keras.optimizers.SGD",
    "tensorflow.train.MomentumOptimizer": "keras.optimizers.SGD(momentum=...)",
    "tensorflow.train.MonitoredTrainingSession": "phalanx.DistributedSession",
    "tensorflow.train.RMSPropOptimizer": "keras.optimizers.RMSprop",
    "tensorflow.train.Saver": "checkpoints of phalanx.run; tf.train.Checkpoint",
    "tensorflow.train.Server": "phalanx.run, phalanx.TaskSpec().create_server()",
    "tensorflow.train.SessionRunHook": "phalanx.hooks.Hook",
    "tensorflow.train.StopAtStepHook": "phalanx.hooks.StopAtStepHook; train_steps",
    "tensorflow.train.SyncReplicasOptimizer": "--sync",
    "tensorflow.train.exponential_decay": "keras.optimizers.schedules.ExponentialDecay",
    "tensorflow.train.get_global_step": "session.step",
    "tensorflow.train.get_or_create_global_step": "session.step",
    "tensorflow.train.piecewise_constant": "keras.optimizers.schedules.PiecewiseConstantDecay",
    "tensorflow.train.replica_device_setter": "none: Phalanx places the variables",
    "tensorflow.trainable_variables": "model.trainable_weights",
    "tensorflow.variable_scope": "the name of a Keras layer",
    "tensorlayer.": "phalanx.DistributedSession: see session.md",
    "tensorlayer.distributed.LoadCheckpoint": "phalanx.hooks.LoadCheckpoint",
    "tensorlayer.distributed.StopAtTimeHook": "phalanx.hooks.StopAtTimeHook",
    "tensorlayer.distributed.TaskSpec": "phalanx.TaskSpec",
}


def look_up(table: Mapping[str, str], name: str) -> str | None:
    """Return the text of the longest key that matches a name."""
    found = [key for key in table if name == key or (key.endswith(".") and name.startswith(key))]
    return table[max(found, key=len)] if found else None
