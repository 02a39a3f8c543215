"""The Cluster page of TensorBoard: the tasks of a run, live."""
