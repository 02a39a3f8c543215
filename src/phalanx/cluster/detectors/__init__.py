"""One detector a file: `detect(environ, argv)` gives this process's place, or None."""
