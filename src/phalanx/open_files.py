"""The limit of open files of this process."""

import resource
from pathlib import Path

from phalanx.errors import ConfigurationError


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files to `count`, if it is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or count <= soft:
        return
    if hard != resource.RLIM_INFINITY and count > hard:
        raise ConfigurationError(
            f"{count} open files are needed, but the hard limit of this process is {hard}: "
            f"raise the limit (ulimit -Hn {count})"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def allow_more_open_files(count: int) -> None:
    """Raise the limit so that `count` files can be opened besides those that are open now."""
    # A program may hold hundreds of files, and descriptors are given out from the lowest free one.
    allow_open_files(sum(1 for _ in Path("/dev/fd").iterdir()) + count)
