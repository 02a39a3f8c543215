"""What starts the tasks of a job, from outside. Nothing here imports TensorFlow."""
