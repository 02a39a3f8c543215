"""How steps are run: what differs between one process, in step on many, and parameter servers."""
