"""TensorFlow 1 programs on TensorFlow 2.

`python -m phalanx.compat.tf1 PROGRAM` and `phalanx run --tf1 PROGRAM` run a program of that time
unchanged. Those who port a program step by step import the same names from here:

    from phalanx.compat.tf1 import contrib, estimator
"""
