"""TFRecord files, record by record: reading, in memory that does not grow with the file.

A file is a row of frames: the data's length (8 bytes, little-endian), the length's checksum, the
data, the data's checksum; the checksums are masked CRC-32C. Gzip or zlib may be around the whole.

    for record in read_records("train-*.tfrecord"):
        ...
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from phalanx.errors import RecordError
from phalanx.records.codec import FrameStatus, codec
from phalanx.records.compression import Compression, Unpacker, detect_compression
from phalanx.records.storage import expand, open_input

OVERHEAD = 16
"""The bytes of a frame beside its data."""

_HEADER = 12
_WINDOW = 1 << 20
_LARGEST_BATCH = 1 << 26
_LARGEST_AFTER_DAMAGE = 1 << 26

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Chunk:
    """Whole, sound records that lie one after the other. Valid until the next chunk is asked for.

    `spans` has two numbers for each record: where its data begins in `data`, and its length.
    """

    data: memoryview
    spans: memoryview
    index: int
    offset: int

    def __len__(self) -> int:
        return len(self.spans) // 2

    def __iter__(self) -> Iterator[bytes]:
        spans = self.spans
        for i in range(0, len(spans), 2):
            yield bytes(self.data[spans[i] : spans[i] + spans[i + 1]])

    def offset_of(self, number: int) -> int:
        """Where the chunk's record of that number begins in the file."""
        return int(self.offset + self.spans[2 * number] - _HEADER)


@dataclass(frozen=True)
class Part:
    """Some of a file's bytes: whole records, the first of which is record number `index`."""

    start: int
    stop: int
    index: int


@dataclass(frozen=True)
class Damage:
    """Bytes that hold no sound record."""

    path: str
    index: int
    offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> RecordError:
        """What a reader that cannot go on past it raises."""
        return RecordError(self.path, self.index, self.offset, self.reason)


def read_records(
    paths: Paths, *, compression: Compression | None = None, check: bool = True
) -> Iterator[bytes]:
    """The data of every record of the files.

    The first damaged record is a `RecordError` with its file, number and offset. Compression is
    seen from the files themselves unless it is given; `check=False` leaves out the checksums of
    the data.
    """
    for path in expand(paths):
        for chunk in read_chunks(path, compression=compression, check=check):
            yield from chunk


def read_chunks(
    path: str,
    *,
    most: int | None = None,
    compression: Compression | None = None,
    check: bool = True,
    part: Part | None = None,
) -> Iterator[Chunk]:
    """The records of a file, or of a part of it, many at a time.

    With `most` each chunk but the last has exactly that many, unless they are more than 64 MiB.
    """
    for piece in walk(path, most=most, compression=compression, check=check, part=part):
        if isinstance(piece, Damage):
            raise piece.error()
        yield piece


def count_records(path: str, *, compression: Compression | None = None) -> int:
    """How many records a file has; the lengths' checksums are checked, the data's are not."""
    return sum(len(chunk) for chunk in read_chunks(path, compression=compression, check=False))


def walk(
    path: str,
    *,
    most: int | None = None,
    compression: Compression | None = None,
    check: bool = True,
    found: list[Compression] | None = None,
    part: Part | None = None,
) -> Iterator[Chunk | Damage]:
    """Everything in a file: its sound records, and between them what is damaged.

    After damage it looks for the next place where a whole record with right checksums begins.
    `found` is given the file's compression.
    """
    with contextlib.closing(open_input(path)) as file:
        packing = Compression.NONE if part else compression or detect_compression(file)
        if found is not None:
            found.append(packing)
        window = _Window(file if packing is Compression.NONE else Unpacker(file, packing))
        if part is not None:
            window.enter(part)
        yield from _walk(path, window, most, check, part.index if part else 0)


class _Window:
    """The part of a file that is in memory. It grows only with bytes that were really read."""

    def __init__(self, file: BinaryIO | Unpacker) -> None:
        self.offset = 0
        self.at_end = False
        self._file = file
        self._memory = memoryview(bytearray(_WINDOW))
        self._start = self._stop = 0
        self._left: int | None = None

    def enter(self, part: Part) -> None:
        """Read nothing but this part of a file that is not compressed."""
        assert not isinstance(self._file, Unpacker)
        self._file.seek(part.start)
        self.offset, self._left = part.start, part.stop - part.start

    @property
    def data(self) -> memoryview:
        return self._memory[self._start : self._stop]

    @property
    def damage(self) -> str | None:
        """What is wrong with the compressed data that ends here."""
        return self._file.damage if isinstance(self._file, Unpacker) else None

    def take(self, size: int) -> None:
        self._start += size
        self.offset += size

    def fill(self) -> None:
        """Read more, after what is there."""
        size = self._stop - self._start
        memory = self._memory
        if size == len(memory):
            self._memory = memoryview(bytearray(2 * size))
        self._memory[:size] = memory[self._start : self._stop]
        self._start, self._stop = 0, size
        free = self._memory[size:] if self._left is None else self._memory[size:][: self._left]
        count = self._file.readinto(free)  # type: ignore[union-attr]
        self._stop += count
        if self._left is not None:
            self._left -= count
        self.at_end = count == 0


def _walk(
    path: str, window: _Window, most: int | None, check: bool, index: int
) -> Iterator[Chunk | Damage]:
    while True:
        data = window.data
        spans, used, status, length = codec.scan(data, 0, most or len(data) // OVERHEAD + 1, check)
        numbers = memoryview(spans).cast("B").cast("q")
        count = len(numbers) // 2
        is_short = count == 0 or (most is not None and count < most and used < _LARGEST_BATCH)
        if status == FrameStatus.PARTIAL and is_short and not window.at_end:
            window.fill()
        elif count > 0:
            yield Chunk(data[:used], numbers, index, window.offset)
            index += count
            window.take(used)
        elif not data:
            if window.damage:
                yield Damage(path, index, window.offset, 0, window.damage)
            return
        else:
            offset, cut = window.offset, window.damage
            reason = cut or _explain(FrameStatus(status), index, len(data), length)
            _pass_damage(window, FrameStatus(status), length)
            yield Damage(path, index, offset, window.offset - offset, reason)
            index += 1
            if cut:
                return


def _explain(status: FrameStatus, index: int, left: int, length: int) -> str:
    if status is FrameStatus.BAD_DATA:
        return f"the data ({length} bytes) does not fit its checksum"
    if status is FrameStatus.BAD_LENGTH:
        hint = "; this may be no TFRecord file at all" if index == 0 else ""
        return f"the length does not fit its checksum{hint}"
    if left < _HEADER:
        return f"the file ends after {left} bytes of the record's header"
    return f"the record has {length} bytes of data, and the file ends after {left - _HEADER}"


def _pass_damage(window: _Window, status: FrameStatus, length: int) -> None:
    """Move the window to the next sound record, or to the end."""
    if status is FrameStatus.BAD_DATA and _goes_on_after(window, OVERHEAD + length):
        window.take(OVERHEAD + length)
        return
    start = 1
    while True:
        where, is_whole = codec.find(window.data, start)
        if is_whole:
            window.take(where)
            return
        rest = window.data[where:]
        if not rest and window.at_end:
            window.take(where)
            return
        if window.at_end or _length(rest) > _LARGEST_AFTER_DAMAGE:
            start = where + 1
        else:
            window.take(where)
            start = 0
            window.fill()


def _length(header: memoryview) -> int:
    return int.from_bytes(header[:8], "little") if len(header) >= _HEADER else 0


def _goes_on_after(window: _Window, size: int) -> bool:
    """Does a record, or the end of the file, follow after so many bytes?"""
    while len(window.data) < size + _HEADER and not window.at_end:
        window.fill()
    rest = window.data[size:]
    return not rest or codec.scan(rest, 0, 1, False)[2] != FrameStatus.BAD_LENGTH
