"""Predictions from files, and a server with the REST API of TensorFlow Serving."""
