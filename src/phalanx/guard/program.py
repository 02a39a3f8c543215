"""Whether a program loads the guard's library: a dynamic one with the C library of this Python."""

import contextlib
import os
import shutil
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

# This Python, also where sys.executable is a script.
_OWN_PROGRAM = Path("/proc/self/exe")
_INTERPRETER, _NOTE = 3, 4
_GO_NOTE = b"Go\0\0"
_MOST_SCRIPTS = 5
_MOST_NOTE_BYTES = 65536


@dataclass(frozen=True)
class _Elf:
    """The headers of a program that tell how it is loaded; an empty loader: statically linked."""

    kind: bytes
    loader: str = ""
    is_go: bool = False


def find_program_obstacle(path: Path) -> str | None:
    """Return why a program does not load the library; None if it does, or is not known."""
    try:
        for _ in range(_MOST_SCRIPTS):
            if obstacle := _find_file_obstacle(path):
                return obstacle
            interpreter = _find_script_interpreter(path)
            if interpreter is None:
                return None
            path = interpreter
    except (OSError, struct.error):
        pass
    return None


def _find_file_obstacle(path: Path) -> str | None:
    if _gains_rights(path):
        return f"{path} runs with the rights of another user, so it ignores LD_PRELOAD"
    program, own = _read_elf(path), _read_elf(_OWN_PROGRAM)
    if program is None or own is None:
        return None
    if program.kind != own.kind:
        return f"{path} is a program for another processor, or a 32-bit one"
    if not program.loader:
        return f"{path} is linked statically"
    if Path(program.loader).name != Path(own.loader).name:
        return f"{path} uses another C library ({program.loader})"
    if program.is_go:
        return f"{path} is written in Go, which makes system calls without the C library"
    return None


def _gains_rights(path: Path) -> bool:
    """Whether the kernel gives the program rights, as by its set-user-ID bit."""
    found = path.stat()
    with contextlib.suppress(OSError):
        if os.getxattr(path, "security.capability"):
            return True
    return bool(
        (found.st_mode & stat.S_ISUID and found.st_uid != os.geteuid())
        or (found.st_mode & stat.S_ISGID and found.st_gid != os.getegid())
    )


def _find_script_interpreter(path: Path) -> Path | None:
    """Return the program that runs a script, also behind `/usr/bin/env`."""
    with path.open("rb") as file:
        line = file.readline(256)
    words = line[2:].decode(errors="replace").split()
    if not line.startswith(b"#!") or not words:
        return None
    if Path(words[0]).name == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        found = shutil.which(named[0]) if named else None
        return Path(found) if found else None
    return Path(words[0])


def _read_elf(path: Path) -> _Elf | None:
    """Read the headers of an ELF file; None if it is another one."""
    with path.open("rb") as file:
        header = file.read(64)
        if header[:4] != b"\x7fELF":
            return None
        # Class, byte order and machine.
        kind = header[4:6] + header[18:20]
        if header[4:6] != b"\x02\x01":
            return _Elf(kind)
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        table = file.read(size * count)
        loader, is_go = "", False
        for start in range(0, size * count, size):
            segment, _, position, _, _, length = struct.unpack_from("<IIQQQQ", table, start)
            if segment in (_INTERPRETER, _NOTE):
                file.seek(position)
                content = file.read(min(length, _MOST_NOTE_BYTES))
                if segment == _INTERPRETER:
                    loader = content.rstrip(b"\0").decode(errors="replace")
                is_go |= segment == _NOTE and _GO_NOTE in content
    return _Elf(kind, loader, is_go)
