"""Tells which TensorFlow 1 names a program uses and whether they work, without running it."""
