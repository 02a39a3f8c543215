"""Writing TFRecord files atomically, as one file or as shards."""

import os
import re
from collections.abc import Iterable
from typing import Self

from phalanx.errors import DataError
from phalanx.open_files import allow_more_open_files
from phalanx.records.codec import codec
from phalanx.records.compression import Compression, Compressor, compression_for
from phalanx.records.framing import OVERHEAD, read_chunks
from phalanx.records.storage import AtomicFile, exists, is_remote, open_atomic
from phalanx.records.types import Buffer

BUFFER = 1 << 20


class RecordWriter:
    """Writes a TFRecord file atomically.

        with RecordWriter("train.tfrecord") as writer:
            writer.write(b"...")

    An error inside the `with`, or a killed process, leaves an existing file unchanged.

    Args:
        path: The file to write.
        compression: How to compress it; by default by its suffix .gz, .zlib, .zz or .deflate.
        append: Whether to begin with the records of an existing file.
        buffer: How many bytes of records to collect before they are written.
        make_directory: Whether to create the directory of the file if it does not exist.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: Compression | None = None,
        append: bool = False,
        buffer: int = BUFFER,
        make_directory: bool = True,
    ) -> None:
        self.path = os.fspath(path)
        self.compression = compression or compression_for(self.path)
        self.append, self.buffer, self.count = append, buffer, 0
        self.make_directory = make_directory
        self._output: AtomicFile | None = None
        self._compressor: Compressor | None = None
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._is_closed = False

    def write(self, record: Buffer) -> None:
        """Write one record."""
        if self._is_closed:
            raise self._closed()
        # The caller may change other memory before it is written.
        data = record if isinstance(record, bytes) else memoryview(record).tobytes()
        self._buffered.append(data)
        self._buffered_bytes += len(data) + OVERHEAD
        self.count += 1
        if self._buffered_bytes >= self.buffer:
            self._flush()

    def write_all(self, records: Iterable[Buffer]) -> None:
        """Write many records."""
        for record in records:
            self.write(record)

    def write_framed(self, frames: Buffer, count: int) -> None:
        """Write records that are already framed.

        Args:
            frames: The frames.
            count: The number of records in them.
        """
        self._flush()
        self._write(frames)
        self.count += count

    def close(self) -> None:
        """Write the buffered records and commit the file; a second call does nothing."""
        if self._is_closed:
            return
        self._flush()
        if self._compressor is not None:
            self._compressor.finish()
        self._open().commit()
        self._output, self._is_closed = None, True

    def discard(self) -> None:
        """Remove what was written, and leave an existing file unchanged."""
        self._is_closed = True
        if self._output is not None:
            self._output.discard()
            self._output = None

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.close()
        finally:
            self.discard()

    def _open(self) -> AtomicFile:
        if self._is_closed:
            raise self._closed()
        if self._output is None:
            self._output = open_atomic(self.path, make_directory=self.make_directory)
            if self.compression is not Compression.NONE:
                self._compressor = Compressor(self._output.file, self.compression)
            # A damaged file must be repaired first.
            for chunk in read_chunks(self.path) if self.append and exists(self.path) else ():
                self._write(chunk.data)
        return self._output

    def _closed(self) -> DataError:
        return DataError(f"{self.path} is closed: write to it with a new RecordWriter")

    def _flush(self) -> None:
        if self._buffered:
            self._write(codec.frame(self._buffered))
            self._buffered, self._buffered_bytes = [], 0

    def _write(self, frames: Buffer) -> None:
        output = self._open()
        if self._compressor is not None:
            self._compressor.write(frames)
        else:
            output.file.write(frames)


def shard_path(path: str, shard: int, shards: int) -> str:
    """The path of one shard.

    >>> shard_path("out/train.tfrecord", 3, 10)
    'out/train-00003-of-00010.tfrecord'

    Args:
        path: The path without the shard's number.
        shard: The number of the shard, from 0.
        shards: The number of shards.

    Returns:
        The path with the number before its suffix.
    """
    match = re.fullmatch(r"(.*?)(\.tfrecords?(?:\.gz|\.zlib|\.zz|\.deflate)?)?", path, re.DOTALL)
    assert match is not None
    return f"{match[1]}-{shard:05d}-of-{shards:05d}{match[2] or '.tfrecord'}"


class ShardedWriter:
    """Distributes records over several files in turn, and commits all of them at the end.

        with ShardedWriter("out/train.tfrecord", shards=10) as writer:
            writer.write(b"...")        # out/train-00000-of-00010.tfrecord, -00001-..., ...

    Args:
        path: The path without the shards' numbers; see `shard_path`.
        shards: The number of files.
        compression: How to compress them; by default by their name.
    """

    def __init__(
        self, path: str | os.PathLike[str], shards: int, *, compression: Compression | None = None
    ) -> None:
        if shards < 1:
            raise DataError(f"shards is {shards}: set it to 1 or more")
        name = os.fspath(path)
        if not is_remote(name) and name.endswith("/"):
            raise DataError(f"{name} names no file: add a name, as in {name}train.tfrecord")
        self.writers = [
            RecordWriter(shard_path(name, shard, shards), compression=compression)
            for shard in range(shards)
        ]
        self.count = 0

    @property
    def paths(self) -> list[str]:
        return [writer.path for writer in self.writers]

    def write(self, record: Buffer) -> None:
        """Write one record to the next shard."""
        self.writers[self.count % len(self.writers)].write(record)
        self.count += 1

    def __enter__(self) -> Self:
        allow_more_open_files(len(self.writers) + 64)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                for writer in self.writers:
                    writer._flush()
                for writer in self.writers:
                    writer.close()
        finally:
            for writer in self.writers:
                writer.discard()
