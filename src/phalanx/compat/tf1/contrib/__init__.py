"""tf.contrib: the parts that programs of the time used most."""
