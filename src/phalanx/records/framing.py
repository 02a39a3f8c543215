"""Reading TFRecord files, in memory that does not grow with the file.

A file is a sequence of frames: the data's length (8 bytes, little-endian), the length's checksum,
the data, the data's checksum. Checksums are masked CRC-32C. The whole file may be compressed.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from phalanx.errors import RecordError
from phalanx.records.codec import FrameStatus, codec
from phalanx.records.compression import Compression, Decompressor, detect_compression
from phalanx.records.storage import open_input
from phalanx.records.storage.listing import expand
from phalanx.records.types import Paths

OVERHEAD = 16
"""The bytes of a frame that are not data: its header and its footer."""

_HEADER = 12
_WINDOW = 1 << 20
_LARGEST_BATCH = 1 << 26
_LARGEST_AFTER_DAMAGE = 1 << 26
_LARGEST_RECORD = (1 << 31) - 1
_LARGEST_COMPRESSED_RECORD = 1 << 28
_LARGEST_EXPANSION = 64
"""How many times larger than what was read of the file a record of more than 64 MiB may be."""
_MOST_ROWS = 16384
"""The records of a chunk of small records: rows that lack a feature take memory, too."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive undamaged records, valid until the next chunk is read.

    Attributes:
        data: The records, in their frames.
        spans: Two numbers for each record: the offset of its data in `data`, and its length.
        index: The number of the first record in the file.
        offset: The offset of `data` in the file.
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
        """The offset in the file of the chunk's record `number`, counted from 0."""
        return int(self.offset + self.spans[2 * number] - _HEADER)


@dataclass(frozen=True)
class Part:
    """A range of a file's bytes that holds whole records; the first is record number `index`."""

    start: int
    stop: int
    index: int


@dataclass(frozen=True)
class Damage:
    """A range of a file's bytes that holds no undamaged record, and the reason."""

    path: str
    index: int
    offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> RecordError:
        """The error that a reader raises at this damage."""
        return RecordError(self.path, self.index, self.offset, self.reason)


def read_records(
    paths: Paths, *, compression: Compression | None = None, check: bool = True
) -> Iterator[bytes]:
    """Read the data of every record.

        for record in read_records("train-*.tfrecord"):
            ...

    Args:
        paths: The files, as for `expand`.
        compression: How the files are compressed; detected by default.
        check: Whether to check the checksums of the data. Those of the lengths always are.

    Returns:
        An iterator over the records.

    Raises:
        RecordError: At the first damaged record, with its file, number and offset.
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
    """Read the records of a file, many at a time.

    Args:
        path: The file.
        most: The number of records in each chunk but the last, unless they exceed 64 MiB.
        compression: How the file is compressed; detected by default.
        check: Whether to check the checksums of the data.
        part: The part of an uncompressed file to read; by default all of it.

    Returns:
        An iterator over chunks of records.

    Raises:
        RecordError: At the first damaged record.
    """
    for found in walk(path, most=most, compression=compression, check=check, part=part):
        if isinstance(found, Damage):
            raise found.error()
        yield found


def count_records(path: str, *, compression: Compression | None = None) -> int:
    """Count the records of a file without checking the checksums of their data.

    Args:
        path: The file.
        compression: How the file is compressed; detected by default.

    Returns:
        The number of records.
    """
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
    """Read a file past its damage, which continues at the next record with correct checksums.

    The file's compression is appended to `found`.
    """
    with contextlib.closing(open_input(path)) as file:
        detected = Compression.NONE if part else compression or detect_compression(file)
        if found is not None:
            found.append(detected)
        is_plain = detected is Compression.NONE
        window = _Window(file if is_plain else Decompressor(file, detected))
        if part is not None:
            file.seek(part.start)
            window.offset, window.left = part.start, part.stop - part.start
        yield from _walk(path, window, most, check, part.index if part else 0)


class _Window:
    """The part of a file that is in memory. It grows only with bytes that were read."""

    def __init__(self, file: BinaryIO | Decompressor) -> None:
        self.offset = 0
        self.at_end = False
        self._file = file
        self._memory = memoryview(bytearray(_WINDOW))
        self._start = self._stop = 0
        self.left: int | None = None
        self._wasted = 0

    @property
    def data(self) -> memoryview:
        return self._memory[self._start : self._stop]

    @property
    def damage(self) -> str | None:
        """Why the compressed data ended early, if it did."""
        return self._file.damage if isinstance(self._file, Decompressor) else None

    @property
    def largest_record(self) -> int:
        """A few bytes may expand to any length, and a damaged length demand any memory."""
        is_plain = not isinstance(self._file, Decompressor)
        return _LARGEST_RECORD if is_plain else _LARGEST_COMPRESSED_RECORD

    @property
    def expands_too_much(self) -> bool:
        """Whether the record that is being read takes far more memory than the file has bytes."""
        if not isinstance(self._file, Decompressor):
            return False
        return len(self.data) > _LARGEST_BATCH + _LARGEST_EXPANSION * self._file.consumed

    def waste(self, size: int) -> bool:
        """Count data whose checksum was wrong; is the search for records still worth it?

        By chance this happens once for each damage. A file made so that it happens at every byte
        would take a time that is quadratic in its size.
        """
        self._wasted += size
        return self._wasted <= _LARGEST_AFTER_DAMAGE + 8 * (self.offset + len(self.data))

    def take(self, size: int) -> None:
        self._start += size
        self.offset += size

    def fill(self) -> None:
        if self._stop == len(self._memory):
            self._make_room()
        free = self._memory[self._stop :]
        if self.left is not None:
            free = free[: self.left]
        self.at_end = not free
        # Until it is full: if each read returned a few bytes, the data would be scanned as often.
        while free and not self.at_end:
            count = self._file.readinto(free)  # type: ignore[union-attr]
            self._stop += count
            if self.left is not None:
                self.left -= count
            self.at_end = count == 0
            free = free[count:]

    def _make_room(self) -> None:
        """Move the data to the beginning, or to more memory if that would free less than half."""
        memory, size = self._memory, self._stop - self._start
        if self._start < len(memory) // 2:
            self._memory = memoryview(bytearray(2 * len(memory)))
        self._memory[:size] = memory[self._start : self._stop]
        self._start, self._stop = 0, size


def _walk(
    path: str, window: _Window, most: int | None, check: bool, index: int
) -> Iterator[Chunk | Damage]:
    while True:
        data = window.data
        spans, used, status, length = codec.scan(data, 0, most or _MOST_ROWS, check)
        numbers = memoryview(spans).cast("B").cast("q")
        count = len(numbers) // 2
        is_short = count == 0 or (most is not None and count < most and used < _LARGEST_BATCH)
        is_long = length > window.largest_record or (count == 0 and window.expands_too_much)
        if status == FrameStatus.PARTIAL and is_short and not window.at_end and not is_long:
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
            reason = cut or _explain(FrameStatus(status), index, window, length)
            is_found = _skip_damage(window, FrameStatus(status), length)
            if not is_found:
                reason += "; the rest is not searched, because its lengths are made up"
            yield Damage(path, index, offset, window.offset - offset, reason)
            index += 1
            if cut or not is_found:
                return


def _explain(status: FrameStatus, index: int, window: _Window, length: int) -> str:
    left = len(window.data)
    if status is FrameStatus.BAD_DATA:
        return f"the data ({length} bytes) does not fit its checksum"
    if status is FrameStatus.BAD_LENGTH:
        hint = "; this may be no TFRecord file at all" if index == 0 else ""
        return f"the length does not fit its checksum{hint}"
    if left < _HEADER:
        return f"the file ends after {left} bytes of the record's header"
    if length > _LARGEST_RECORD:
        return f"the record has {length} bytes of data, and 2 GiB is the limit of a message"
    if length > window.largest_record:
        return (f"the record has {length} bytes of data, and the limit in a compressed file is "
                f"{window.largest_record >> 20} MiB: decompress the file first")  # fmt: skip
    if window.expands_too_much:
        return (f"the record has {length} bytes of data, in a file that expands more than "
                f"{_LARGEST_EXPANSION} times: decompress the file first")  # fmt: skip
    return f"the record has {length} bytes of data, and the file ends after {left - _HEADER}"


def _skip_damage(window: _Window, status: FrameStatus, length: int) -> bool:
    """Move the window to the next undamaged record, or to the end; False gives up at the end.

    Each byte is checked once as the beginning of a header. The data of a header is checked once;
    `waste` limits how much data is checked in vain.
    """
    if status is FrameStatus.BAD_DATA:
        if _is_followed_by_record(window, OVERHEAD + length):
            window.take(OVERHEAD + length)
            return True
        if not window.waste(length):
            return _give_up(window)
    start = 1
    while True:
        start = codec.find(window.data, start)
        rest = window.data[start:]
        length = int.from_bytes(rest[:8], "little") if len(rest) >= _HEADER else 0
        if length > _LARGEST_AFTER_DAMAGE:
            start += 1
        elif len(rest) < OVERHEAD + length and not window.at_end:
            window.take(start)
            start = 0
            window.fill()
        elif len(rest) < _HEADER:
            window.take(len(window.data))
            return True
        elif codec.scan(rest, 0, 1, True)[2] == FrameStatus.GOOD:
            window.take(start)
            return True
        elif not window.waste(min(length, len(rest))):
            return _give_up(window)
        else:
            start += 1


def _give_up(window: _Window) -> bool:
    while not window.at_end:
        window.take(len(window.data))
        window.fill()
    window.take(len(window.data))
    return False


def _is_followed_by_record(window: _Window, size: int) -> bool:
    """Does a record, or the end of the file, follow after `size` bytes?"""
    while len(window.data) < size + _HEADER and not window.at_end:
        window.fill()
    rest = window.data[size:]
    return not rest or codec.scan(rest, 0, 1, False)[2] != FrameStatus.BAD_LENGTH
