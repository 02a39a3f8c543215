"""Each detector is a function `detect(environ, argv)` that returns this process's task, or None."""
