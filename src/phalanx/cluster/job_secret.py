"""The secret of a job, with which its tasks authenticate the messages that they send each other.

A launcher makes it, and passes it in the environment, never in arguments, logs or plans. For tasks
that are started by hand, PHALANX_SECRET_FILE names a file that only its owner can read.
"""

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from phalanx.errors import ClusterError

VARIABLE = "PHALANX_SECRET"
FILE_VARIABLE = "PHALANX_SECRET_FILE"

_MIN_BYTES = 16
_MAX_BYTES = 4096


def make_secret() -> str:
    return secrets.token_hex(32)


def with_secret(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the tasks of a job, with a new secret unless it has one."""
    return {**environ, VARIABLE: environ.get(VARIABLE) or make_secret()}


def read_secret(environ: Mapping[str, str]) -> bytes | None:
    """Return the secret of this process's job; None if it has none.

    >>> read_secret({"PHALANX_SECRET": "correct horse battery staple"})
    b'correct horse battery staple'
    """
    if path := environ.get(FILE_VARIABLE):
        return _check(_read_file(Path(path)), f"the file {path}")
    text = environ.get(VARIABLE)
    return _check(text.encode(errors="surrogateescape"), VARIABLE) if text else None


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if stat.S_ISREG(about.st_mode) and about.st_mode & 0o077:
                raise ClusterError(
                    f"{FILE_VARIABLE} is {path}, which other users can read: chmod 600 {path}"
                )
            return file.read(_MAX_BYTES + 1).strip()
    except OSError as error:
        raise ClusterError(
            f"{FILE_VARIABLE} is {path}, which cannot be read: {error.strerror}"
        ) from None


def _check(secret: bytes, source: str) -> bytes:
    if not _MIN_BYTES <= len(secret) <= _MAX_BYTES:
        raise ClusterError(
            f"the secret of the job in {source} has {len(secret)} bytes: use {_MIN_BYTES} to "
            f"{_MAX_BYTES}, for example the output of `openssl rand -hex 32`"
        )
    return secret
