"""The limit of open files of this process."""

import resource

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
