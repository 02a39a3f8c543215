"""Variables whose values are secrets: where the values come from, and how plans hide them."""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.values import is_variable

HIDDEN = "<hidden>"
# The settings of these libraries are no secrets, and a reader of a plan needs them.
_SETTINGS = re.compile(r"(CUDA|GRPC|KERAS|KMP|NCCL|OMP|PHALANX|TF|XLA)_[A-Z0-9_]*|PYTHON[A-Z]*")
_SECRETS = re.compile(r"(^|_)(SECRET|TOKEN|PASSWORD|PASSWD|KEY|CREDENTIALS?)(_|$)")
# Linux limits a variable to 128 KiB.
_MAX_BYTES = 64 << 10


def parse_secret(text: str) -> tuple[str, str]:
    """Parse NAME=SOURCE; NAME must be a name that a shell can export."""
    name, equals, source = text.partition("=")
    if not equals or not source or not is_variable(name):
        raise ValueError(f"{text!r} is not NAME=SECRET")
    return name, source


def parse_secret_file(text: str) -> tuple[str, str]:
    """Parse NAME=FILE, and make the path absolute."""
    name, source = parse_secret(text)
    return name, str(Path(source).expanduser().absolute())


def hide_values(variables: Mapping[str, str]) -> dict[str, str]:
    """Replace the values that may be secrets: all but settings of known libraries."""
    return {name: text if _is_setting(name) else HIDDEN for name, text in variables.items()}


def _is_setting(name: str) -> bool:
    return _SETTINGS.fullmatch(name) is not None and not _SECRETS.search(name)


def read_secret(path: str) -> str:
    """Return the content of a file that only its owner may read, without its last newline."""
    try:
        # Without blocking, because a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            content = file.read(_MAX_BYTES + 1) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise JobError(f"the secret {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise JobError(f"the secret {path} is not a file")
    if mode & 0o077:
        raise JobError(
            f"the secret {path} has mode {stat.S_IMODE(mode):04o}, so others can access it: "
            f"chmod 600 {path}"
        )
    if len(content) > _MAX_BYTES or b"\0" in content:
        raise JobError(f"the secret {path} cannot be a variable: it is too long or has a NUL byte")
    try:
        return content.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise JobError(f"the secret {path} is not UTF-8 text") from None


def check_secrets(paths: Iterable[str]) -> None:
    """Raise a JobError unless every file can be read, and only by its owner."""
    for path in paths:
        read_secret(path)
