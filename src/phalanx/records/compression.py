"""Gzip and zlib compression of whole TFRecord files, and its detection."""

import struct
import zlib
from enum import StrEnum
from typing import BinaryIO

from phalanx.errors import DataError
from phalanx.records.codec import FrameStatus, codec
from phalanx.records.types import Buffer

_WINDOW = {"gzip": 31, "zlib": 15}
# Each member of a gzip file copies what is left of a block.
_BLOCK = 1 << 14


class Compression(StrEnum):
    """How a file is compressed. TensorFlow calls these "", GZIP and ZLIB."""

    NONE = "none"
    GZIP = "gzip"
    ZLIB = "zlib"


_FOREIGN = {b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz"}


def detect_compression(file: BinaryIO) -> Compression:
    """The compression of an open file, by its first bytes; the file is left at its beginning."""
    start = file.read(12)
    file.seek(0)
    if codec.scan(start, 0, 1, False)[2] != FrameStatus.BAD_LENGTH and len(start) == 12:
        return Compression.NONE
    if start[:2] == b"\x1f\x8b":
        return Compression.GZIP
    for magic, name in _FOREIGN.items():
        if start.startswith(magic):
            raise DataError(
                f"{getattr(file, 'name', 'the file')} is compressed with {name}, which TensorFlow "
                "does not read: decompress it, or compress it with gzip"
            )
    # A zlib stream begins with its method (8), and its first two bytes are a multiple of 31.
    if len(start) > 2 and start[0] & 0x8F == 8 and struct.unpack(">H", start[:2])[0] % 31 == 0:
        return Compression.ZLIB
    return Compression.NONE


def compression_for(path: str) -> Compression:
    """The compression by file name: .gz is gzip; .zlib, .zz and .deflate are zlib."""
    if path.endswith(".gz"):
        return Compression.GZIP
    return Compression.ZLIB if path.endswith((".zlib", ".zz", ".deflate")) else Compression.NONE


class Decompressor:
    """Reads the decompressed data of a file up to the first damage, which `damage` describes.

    `consumed` is the number of bytes that were read of the file.
    """

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self.damage: str | None = None
        self.consumed = 0
        self._file, self._name = file, compression.value
        self._stream = zlib.decompressobj(_WINDOW[compression])
        self._input = b""

    def readinto(self, target: memoryview) -> int:
        """Fill the beginning of `target` and return the number of bytes, 0 at the end."""
        while self.damage is None:
            try:
                out = self._decompress(min(len(target), 1 << 20))
            except zlib.error as error:
                self.damage = f"the {self._name} data is damaged ({error})"
                break
            if out is None:
                break
            if out:
                target[: len(out)] = out
                return len(out)
        return 0

    def _decompress(self, most: int) -> bytes | None:
        """Up to `most` bytes; b"" if more input is needed, None at the end."""
        if self._stream.eof:
            self._input = self._stream.unused_data or self._read()
            # Zeros after the end are padding, as tar and tape leave it.
            self._input = self._input.lstrip(b"\0")
            if not self._input:
                return None
            self._stream = zlib.decompressobj(_WINDOW[self._name])
        if not self._input:
            self._input = self._stream.unconsumed_tail or self._read()
        if not self._input:
            out = self._stream.flush()
            if not out:
                self.damage = f"the {self._name} data is cut short"
            return out
        out = self._stream.decompress(self._input, most)
        self._input = self._stream.unconsumed_tail
        return out

    def _read(self) -> bytes:
        block = self._file.read(_BLOCK)
        self.consumed += len(block)
        return block


class Compressor:
    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._file = file
        self._stream = zlib.compressobj(6, zlib.DEFLATED, _WINDOW[compression])

    def write(self, data: Buffer) -> None:
        self._file.write(self._stream.compress(data))

    def finish(self) -> None:
        """Write the buffered data; the file stays open."""
        self._file.write(self._stream.flush())
