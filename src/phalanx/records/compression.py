"""Gzip and zlib around TFRecord files, and how a file tells which it has."""

from __future__ import annotations

import struct
import zlib
from enum import StrEnum
from typing import TYPE_CHECKING, BinaryIO

from phalanx.records.codec import FrameStatus, codec

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WINDOW = {"gzip": 31, "zlib": 15}
_BLOCK = 1 << 17


class Compression(StrEnum):
    """How a file is packed. TensorFlow calls them "", GZIP and ZLIB."""

    NONE = "none"
    GZIP = "gzip"
    ZLIB = "zlib"


def detect_compression(file: BinaryIO) -> Compression:
    """How an open file is packed, by its first bytes; it is left at its beginning."""
    start = file.read(12)
    file.seek(0)
    if codec.scan(start, 0, 1, False)[2] != FrameStatus.BAD_LENGTH and len(start) == 12:
        return Compression.NONE
    if start[:2] == b"\x1f\x8b":
        return Compression.GZIP
    # A zlib stream begins with its method (8) and a number that 31 divides.
    if len(start) > 2 and start[0] & 0x8F == 8 and struct.unpack(">H", start[:2])[0] % 31 == 0:
        return Compression.ZLIB
    return Compression.NONE


def compression_for(path: str) -> Compression:
    """What a file of this name is expected to have: .gz is gzip, .zlib, .zz or .deflate is zlib."""
    if path.endswith(".gz"):
        return Compression.GZIP
    return Compression.ZLIB if path.endswith((".zlib", ".zz", ".deflate")) else Compression.NONE


class Unpacker:
    """Reads a packed file as if it were not.

    What was unpacked before damage is handed out first; then `damage` says what is wrong, and
    reading gives nothing more.
    """

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self.damage: str | None = None
        self._file, self._name = file, compression.value
        self._stream = zlib.decompressobj(_WINDOW[compression])
        self._waiting = b""

    def readinto(self, target: memoryview) -> int:
        """Fill the beginning of `target`; 0 at the end of the data."""
        while self.damage is None:
            try:
                out = self._step(min(len(target), 1 << 20))
            except zlib.error as error:
                self.damage = f"the {self._name} data is damaged ({error})"
                break
            if out is None:
                break
            if out:
                target[: len(out)] = out
                return len(out)
        return 0

    def _step(self, most: int) -> bytes | None:
        """Some unpacked bytes, none yet (b""), or None at the end."""
        if self._stream.eof:
            self._waiting = self._stream.unused_data or self._file.read(_BLOCK)
            # Zeros after the end are padding, as tar and tape leave it.
            self._waiting = self._waiting.lstrip(b"\0")
            if not self._waiting:
                return None
            self._stream = zlib.decompressobj(_WINDOW[self._name])
        if not self._waiting:
            self._waiting = self._stream.unconsumed_tail or self._file.read(_BLOCK)
        if not self._waiting:
            out = self._stream.flush()
            if not out:
                self.damage = f"the {self._name} data is cut short"
            return out
        out = self._stream.decompress(self._waiting, most)
        self._waiting = self._stream.unconsumed_tail
        return out


class Packer:
    """Packs what is written to a file."""

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._file = file
        self._stream = zlib.compressobj(6, zlib.DEFLATED, _WINDOW[compression])

    def write(self, data: Buffer) -> None:
        """Pack and write the data."""
        self._file.write(self._stream.compress(data))

    def finish(self) -> None:
        """Write what is still inside; the file stays open."""
        self._file.write(self._stream.flush())
