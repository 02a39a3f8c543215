"""Trackers of experiments: MLflow, Weights & Biases, and the HParams page of TensorBoard."""
