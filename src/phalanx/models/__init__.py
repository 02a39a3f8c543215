"""Reference models, in Keras 3."""
