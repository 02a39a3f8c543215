"""Where each record of a file begins: for reading any of them, and for splitting a file exactly."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

from phalanx.errors import DataError, RecordError
from phalanx.records.codec import FrameStatus, codec
from phalanx.records.compression import Compression, detect_compression
from phalanx.records.framing import Chunk, read_chunks
from phalanx.records.storage import file_size, open_input, read_range, writing

SUFFIX = ".index"
_MAGIC = b"phxindex"
_HEADER = struct.Struct("<8sQQQ")


@dataclass(frozen=True)
class RecordIndex:
    """The offsets of a file's records: of every `stride`-th, and the end.

        index = RecordIndex.build("train.tfrecord")
        len(index)              # how many records
        index.read(10, 20)      # records 10 to 19, without reading the others

    A larger stride takes less memory; records between two offsets are found by their lengths.
    """

    path: str
    size: int
    count: int
    stride: int
    offsets: array[int]

    @classmethod
    def build(cls, path: str, *, stride: int = 1) -> RecordIndex:
        """Read a file's lengths. A compressed file cannot be entered in the middle: it has none."""
        with open_input(path) as file:
            packing = detect_compression(file)
        if packing is not Compression.NONE:
            raise DataError(
                f"{path} is compressed ({packing}): only its whole can be read, in order"
            )
        offsets, count = array("q"), 0
        for chunk in read_chunks(path, compression=packing, check=False):
            first = -count % stride
            offsets.extend(chunk.offset_of(number) for number in range(first, len(chunk), stride))
            count += len(chunk)
        size = file_size(path)
        offsets.append(size)
        return cls(path, size, count, stride, offsets)

    @classmethod
    def load(cls, path: str) -> RecordIndex | None:
        """The index saved beside a file; None if there is none, or the file has changed since."""
        try:
            with open_input(path + SUFFIX) as file:
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
        return (
            cls(path, size, count, stride, offsets)
            if is_sound and size == file_size(path)
            else None
        )

    def save(self) -> str:
        """Keep the index beside its file; the name is returned."""
        with writing(self.path + SUFFIX) as file:
            file.write(_HEADER.pack(_MAGIC, self.size, self.count, self.stride))
            file.write(self.offsets.tobytes())
        return self.path + SUFFIX

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, stop: int) -> Chunk:
        """The records from number `start` up to `stop`, their checksums checked."""
        if not 0 <= start <= stop <= self.count:
            raise IndexError(f"{self.path} has {self.count} records, not {start} to {stop}")
        first, last = start // self.stride, -(-stop // self.stride)
        offset = self.offsets[first]
        data = read_range(self.path, offset, self.offsets[last])
        skip = start - first * self.stride
        _, at, _, _ = codec.scan(data, 0, skip, False)
        spans, _, status, _ = codec.scan(data, at, stop - start, True)
        numbers = memoryview(spans).cast("B").cast("q")
        found = len(numbers) // 2
        if found < stop - start:
            end = numbers[-2] + numbers[-1] + 4 if found else at
            reason = explain(FrameStatus(status))
            raise RecordError(self.path, start + found, offset + end, reason)
        return Chunk(memoryview(data), numbers, start, offset)


def explain(status: FrameStatus) -> str:
    """Why a record is not where an index says it is."""
    if status is FrameStatus.BAD_DATA:
        return "the data does not fit its checksum"
    if status is FrameStatus.BAD_LENGTH:
        return "the length does not fit its checksum, or the file changed after it was indexed"
    return "the file changed after it was indexed"


def open_index(path: str) -> RecordIndex:
    """The index of a file: the saved one if it is still right, else a new one, in memory."""
    return RecordIndex.load(path) or RecordIndex.build(path)
