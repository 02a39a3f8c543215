"""tf.contrib.layers: feature columns, by their first names."""

import tensorflow.compat.v1 as tf

real_valued_column = tf.feature_column.numeric_column
bucketized_column = tf.feature_column.bucketized_column
sparse_column_with_hash_bucket = tf.feature_column.categorical_column_with_hash_bucket
sparse_column_with_keys = tf.feature_column.categorical_column_with_vocabulary_list
sparse_column_with_integerized_feature = tf.feature_column.categorical_column_with_identity
crossed_column = tf.feature_column.crossed_column
embedding_column = tf.feature_column.embedding_column
one_hot_column = tf.feature_column.indicator_column
