"""tf.contrib.tensorboard."""
