"""The library that is loaded into tasks: where it is, whether it works, and its variables."""

import contextlib
import ctypes
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from phalanx.errors import ConfigurationError
from phalanx.guard.program import find_program_obstacle

# What the user may set: `off`, or `required` to fail where the library cannot work.
SWITCH = "PHALANX_GUARD"
BIND = "PHALANX_GUARD_BIND"
PEERS = "PHALANX_GUARD_PEERS"
PRELOAD = "LD_PRELOAD"

ANY = "*"
"""As PHALANX_GUARD_BIND: wildcard addresses stay; as PHALANX_GUARD_PEERS: any host may connect."""


def is_off(environ: Mapping[str, str]) -> bool:
    """Whether the user has switched the guard off; a ConfigurationError for an unknown setting."""
    return _read_switch(environ) == "off"


def is_required(environ: Mapping[str, str]) -> bool:
    """Whether nothing may start without the guard."""
    return _read_switch(environ) == "required"


def _read_switch(environ: Mapping[str, str]) -> str:
    setting = environ.get(SWITCH, "")
    if setting not in ("", "off", "required"):
        raise ConfigurationError(f"{SWITCH} is {setting!r}: set it to off or required, or unset it")
    return setting


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
    return find_program_obstacle(Path(path)) if path else None


def find_path_obstacle(library: Path) -> str | None:
    """Return why a library at this path cannot be preloaded; None if it can."""
    # LD_PRELOAD separates libraries by these, and has no way to escape them.
    if any(character in ":" or character.isspace() for character in str(library)):
        where = f"its library is at {str(library)!r}"
        return f"{where}: install Phalanx at a path without spaces and colons"
    return None


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
