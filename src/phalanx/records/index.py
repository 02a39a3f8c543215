"""The offsets of a file's records, for random access and for splitting a file."""

import operator
import os
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from phalanx.errors import DataError, RecordError
from phalanx.records.codec import FrameStatus, codec
from phalanx.records.compression import Compression, detect_compression
from phalanx.records.framing import OVERHEAD, Chunk, read_chunks
from phalanx.records.html import draw_table, format_bytes
from phalanx.records.storage import file_size, is_remote, open_input, read_range, writing
from phalanx.records.storage.listing import INDEX_SUFFIX

_MAGIC = b"phxindex"
_HEADER = struct.Struct("<8sQQQ")


@dataclass(frozen=True)
class RecordIndex:
    """The offsets of a file's records.

        index = RecordIndex.build("train.tfrecord")
        len(index)              # how many records
        index.read(10, 20)      # records 10 to 19, without reading the others
        index.take([7, 3, 7])   # these records, in this order

    Attributes:
        size: The size of the file when it was indexed.
        stride: How many records lie between two offsets; a larger stride takes less memory.
        offsets: The offset of every `stride`-th record, and the end of the file.
    """

    path: str
    size: int
    count: int
    stride: int
    offsets: "array[int]"

    @classmethod
    def build(cls, path: str, *, stride: int = 1) -> Self:
        """Index a file by reading the lengths of its records.

        Args:
            path: The file, which must not be compressed.
            stride: How many records lie between two offsets.

        Returns:
            The index, in memory.

        Raises:
            DataError: The file is compressed, so that it can only be read in order.
        """
        with open_input(path) as file:
            compression = detect_compression(file)
        if compression is not Compression.NONE:
            raise DataError(
                f"{path} is compressed ({compression}): it can only be read as a whole, in order"
            )
        offsets, count = array("q"), 0
        for chunk in read_chunks(path, compression=compression, check=False):
            first = -count % stride
            offsets.extend(chunk.offset_of(number) for number in range(first, len(chunk), stride))
            count += len(chunk)
        size = file_size(path)
        offsets.append(size)
        return cls(path, size, count, stride, offsets)

    @classmethod
    def load(cls, path: str) -> Self | None:
        """Load the index saved beside a file; None if there is none, or the file has changed."""
        try:
            with open_input(path + INDEX_SUFFIX) as file:
                data = file.read()
        except DataError:
            return None
        if len(data) < _HEADER.size:
            return None
        magic, size, count, stride = _HEADER.unpack_from(data)
        offsets = array("q")
        if (len(data) - _HEADER.size) % 8 == 0:
            offsets.frombytes(data[_HEADER.size :])
        is_sound = magic == _MAGIC and stride > 0 and len(offsets) == -(-count // stride) + 1
        if not is_sound or size != file_size(path) or not _are_in_order(offsets, size):
            return None
        return cls(path, size, count, stride, offsets)

    def save(self) -> str:
        """Save the index beside its file, and return its path."""
        with writing(self.path + INDEX_SUFFIX) as file:
            file.write(_HEADER.pack(_MAGIC, self.size, self.count, self.stride))
            file.write(self.offsets.tobytes())
        return self.path + INDEX_SUFFIX

    def __len__(self) -> int:
        return self.count

    def _repr_html_(self) -> str:
        row = (self.path, f"{self.count:,}", format_bytes(self.size), self.stride)
        return draw_table("index of a file", ("file", "records", "size", "stride"), [row])

    def read(self, start: int, stop: int) -> Chunk:
        """Read some records and check their checksums.

        Args:
            start: The number of the first record.
            stop: The number after the last record.

        Returns:
            The records.

        Raises:
            RecordError: A record is damaged, or the file has changed since it was indexed.
        """
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"{self.path} has {self.count} records, not {start} to {stop}")
        offset = self.offsets[start // self.stride]
        data = read_range(self.path, offset, self.offsets[-(-stop // self.stride)])
        _, at, _, _ = codec.scan(data, 0, start % self.stride, False)
        spans, _, status, _ = codec.scan(data, at, stop - start, True)
        numbers = memoryview(spans).cast("B").cast("q")
        found = len(numbers) // 2
        if found < stop - start:
            end = offset + (numbers[-2] + numbers[-1] + 4 if found else at)
            raise RecordError(self.path, start + found, end, explain(FrameStatus(status)))
        return Chunk(memoryview(data), numbers, start, offset)

    def take(self, numbers: Sequence[int]) -> list[bytes]:
        """Read records in any order and check their checksums.

        Args:
            numbers: The numbers of the records.

        Returns:
            The records, in this order.

        Raises:
            RecordError: A record is damaged, or the file has changed since it was indexed.
        """
        if self.stride > 1 or is_remote(self.path):
            return [next(iter(self.read(number, number + 1))) for number in numbers]
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.count:
            raise IndexError(
                f"{self.path} has {self.count} records, not {min(numbers)} to {max(numbers)}"
            )
        at = self.offsets
        with open_input(self.path) as file:
            handle = file.fileno()
            frames = [os.pread(handle, at[each + 1] - at[each], at[each]) for each in numbers]
        # The frames are contiguous now, so one call checks and finds all records.
        data = b"".join(frames)
        spans, _, status, _ = codec.scan(data, 0, len(numbers), True)
        places = memoryview(spans).cast("B").cast("q").tolist()
        starts, lengths = places[::2], places[1::2]
        wanted = [len(frame) - OVERHEAD for frame in frames]
        if lengths != wanted:
            # The first record that is damaged, or whose length differs from that of the index.
            place = next((i for i, n in enumerate(lengths) if n != wanted[i]), len(lengths))
            bad = numbers[place]
            reason = FrameStatus(status) if place == len(lengths) else FrameStatus.PARTIAL
            raise RecordError(self.path, bad, at[bad], explain(reason))
        return [data[start : start + n] for start, n in zip(starts, lengths, strict=True)]


def _are_in_order(offsets: "array[int]", size: int) -> bool:
    """Whether each record begins after the one before it, and the last ends with the file."""
    if offsets[0] != (0 if len(offsets) > 1 else size) or offsets[-1] != size:
        return False
    return all(map(operator.lt, offsets, offsets[1:]))


def explain(status: FrameStatus) -> str:
    """Why there is no undamaged record at an offset of an index."""
    if status is FrameStatus.BAD_DATA:
        return "the data does not fit its checksum"
    if status is FrameStatus.BAD_LENGTH:
        return "the length does not fit its checksum, or the file changed after it was indexed"
    return "the file changed after it was indexed"


def open_index(path: str) -> RecordIndex:
    """Load the index saved beside a file, or build one in memory if there is none.

    Args:
        path: The file.

    Returns:
        The index.
    """
    return RecordIndex.load(path) or RecordIndex.build(path)
