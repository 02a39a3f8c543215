"""Finding the files in a tar archive that may be hostile, in linear time and little memory.

Python's tarfile searches the texts of extended headers in quadratic time: 100 KB of digits take 20
seconds. Of these headers, only the names of files with long paths matter here.
"""

from dataclasses import dataclass
from typing import BinaryIO

_BLOCK = 512
_CHECKSUM, _SIZE = slice(148, 156), slice(124, 136)
_REGULAR_FILES = (b"0", b"\0")
_GNU_LONG_NAME, _PAX_HEADER = b"L", b"x"
_MOST_NAME_BYTES = 8192
_MOST_HEADERS = 2000
_SKIP_BYTES = 1 << 20


@dataclass(frozen=True)
class TarMember:
    """Where the contents of a file are in its archive."""

    offset: int
    size: int


def find_members(file: BinaryIO, most_bytes: int) -> dict[str, TarMember]:
    """Find the regular files of an archive by their names without directories.

    Args:
        file: The archive, which is read from its beginning to its end once.
        most_bytes: The largest archive, decompressed, that is read.

    Raises:
        ValueError: It is not a tar archive, or a larger one.
    """
    members: dict[str, TarMember] = {}
    position, long_name = 0, b""
    for _ in range(_MOST_HEADERS):
        header = file.read(_BLOCK)
        position += _BLOCK
        if header == bytes(_BLOCK) or (not header and members):
            return members
        kind, size = header[156:157], _read_size(header)
        padded = -(-size // _BLOCK) * _BLOCK
        if position + padded > most_bytes:
            raise ValueError(f"it has more than {most_bytes >> 20} MiB")
        if kind in (_GNU_LONG_NAME, _PAX_HEADER):
            if size > _MOST_NAME_BYTES:
                raise ValueError(f"it has a header of {size} bytes")
            text = file.read(padded)[:size]
            long_name = _find_pax_path(text) if kind == _PAX_HEADER else text.partition(b"\0")[0]
        else:
            if kind in _REGULAR_FILES:
                name = long_name or header[:100].partition(b"\0")[0]
                base = name.rpartition(b"/")[2].decode(errors="replace")
                members[base] = TarMember(position, size)
            long_name = b""
            _skip(file, padded)
        position += padded
    raise ValueError(f"it has more than {_MOST_HEADERS} files")


def _read_size(header: bytes) -> int:
    """Check a header, and return how many bytes follow it."""
    blank = header[: _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    try:
        checksum, size = (int(header[part].strip(b" \0"), 8) for part in (_CHECKSUM, _SIZE))
    except ValueError:
        checksum, size = -1, 0
    if len(header) < _BLOCK or sum(blank) != checksum or size < 0:
        raise ValueError("it has a header that is damaged, or ends too early")
    return size


def _find_pax_path(text: bytes) -> bytes:
    """Return the path in lines such as `27 path=cifar/data_batch_1`; b"" if there is none."""
    for line in text.split(b"\n"):
        _, _, assignment = line.partition(b" ")
        if assignment.startswith(b"path="):
            return assignment.removeprefix(b"path=")
    return b""


def _skip(file: BinaryIO, size: int) -> None:
    while size > 0:
        skipped = len(file.read(min(size, _SKIP_BYTES)))
        if not skipped:
            raise ValueError("it ends too early")
        size -= skipped
