"""File descriptors that have the same number in every process of a job.

An operation that one task sends to another names a file of the receiver. The sender cannot ask for
the path, so both use a descriptor with a number that is agreed on here.
"""

import os

from phalanx.open_files import allow_open_files

CONTROL_CHANNEL = 1013
WORKER_DATA = 1014


def path_of(descriptor: int) -> str:
    """Return the path by which operations open a descriptor of the process that runs them."""
    return f"/dev/fd/{descriptor}"


def duplicate_to(source: int, descriptor: int) -> None:
    """Make a descriptor of this table refer to an open file."""
    allow_open_files(max(CONTROL_CHANNEL, WORKER_DATA) + 1)
    os.dup2(source, descriptor, inheritable=False)
