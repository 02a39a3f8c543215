"""How steps run: all-reduce in one process or many, asynchronous ps, and synchronous ps."""
