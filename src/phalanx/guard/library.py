"""The library that is loaded into tasks: where it is, whether it works, and its variables."""

import contextlib
import ctypes
import shutil
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from phalanx.errors import ConfigurationError

# What the user may set: `off`, or `required` to fail where the library cannot work.
SWITCH = "PHALANX_GUARD"
BIND = "PHALANX_GUARD_BIND"
PEERS = "PHALANX_GUARD_PEERS"
PRELOAD = "LD_PRELOAD"

ANY = "*"
"""As PHALANX_GUARD_BIND: wildcard addresses stay; as PHALANX_GUARD_PEERS: any host may connect."""

_PROGRAM_INTERPRETER = 3


def is_off(environ: Mapping[str, str]) -> bool:
    """Whether the user has switched the guard off; a ConfigurationError for an unknown setting."""
    setting = environ.get(SWITCH, "")
    if setting not in ("", "off", "required"):
        raise ConfigurationError(f"{SWITCH} is {setting!r}: set it to off or required, or unset it")
    return setting == "off"


def is_active() -> bool:
    """Whether the library is loaded into this process, and has its variables."""
    with contextlib.suppress(AttributeError, OSError):
        return bool(ctypes.CDLL(None).phalanx_guard_is_active())
    return False


def find_library() -> Path | None:
    """Return the library, which the installation builds if there is a C compiler."""
    return next(iter(sorted(Path(__file__).parent.glob("_preload*.so"))), None)


def find_obstacle(program: str | None = None) -> str | None:
    """Return why the library cannot work here, or in this program; None if it can."""
    if sys.platform != "linux":
        return f"it does not work on {sys.platform}"
    library = find_library()
    if library is None:
        return "its library was not built (install gcc, then Phalanx again: pip install .)"
    if path_obstacle := find_path_obstacle(library):
        return path_obstacle
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"its library cannot be loaded: {error}"
    path = shutil.which(program) if program else None
    return _find_program_obstacle(Path(path)) if path else None


def find_path_obstacle(library: Path) -> str | None:
    """Return why a library at this path cannot be preloaded; None if it can."""
    # LD_PRELOAD separates libraries by these, and has no way to escape them.
    if any(character in ":" or character.isspace() for character in str(library)):
        where = f"its library is at {str(library)!r}"
        return f"{where}: install Phalanx at a path without spaces and colons"
    return None


def _find_program_obstacle(path: Path) -> str | None:
    """Read an ELF file: only a dynamic program with the same C library loads ours."""
    try:
        interpreter = _read_interpreter(path)
        own = _read_interpreter(Path(sys.executable))
    except (OSError, struct.error):
        return None
    if interpreter == "":
        return f"{path} is linked statically"
    if interpreter and own and ("musl" in interpreter) != ("musl" in own):
        return f"{path} uses another C library ({interpreter})"
    return None


def _read_interpreter(path: Path) -> str | None:
    """Return the dynamic loader of a 64-bit program, "" if it is static, None if it is a script."""
    with path.open("rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01":
            return None
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        table = file.read(size * count)
        for start in range(0, size * count, size):
            kind, _, position, _, _, length = struct.unpack_from("<IIQQQQ", table, start)
            if kind == _PROGRAM_INTERPRETER:
                file.seek(position)
                return file.read(length).rstrip(b"\0").decode(errors="replace")
    return ""


def guard_variables(
    library: Path, bind: str, peers: Iterable[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that load the library; `bind` is the task's own address or ANY.

    >>> guard_variables(Path("/lib/_preload.so"), "127.0.0.1", [], {"LD_PRELOAD": "jemalloc.so"})
    {'LD_PRELOAD': '/lib/_preload.so:jemalloc.so', 'PHALANX_GUARD_BIND': '127.0.0.1', \
'PHALANX_GUARD_PEERS': ''}
    """
    others = [each for each in environ.get(PRELOAD, "").split(":") if each]
    before = [each for each in others if not Path(each).name.startswith("_preload")]
    return {
        PRELOAD: ":".join([str(library), *before]),
        BIND: bind,
        PEERS: ",".join(dict.fromkeys(peers)),
    }
