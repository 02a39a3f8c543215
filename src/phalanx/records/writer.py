"""Writing TFRecord files: whole or not at all, in one file or in shards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from phalanx.errors import DataError
from phalanx.open_files import allow_open_files
from phalanx.records.codec import codec
from phalanx.records.compression import Compression, Packer, compression_for
from phalanx.records.framing import read_chunks
from phalanx.records.storage import Output, exists, is_remote, open_output

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER = 1 << 20


class RecordWriter:
    """Writes a TFRecord file, which gets its name when it is whole.

        with RecordWriter("train.tfrecord") as writer:
            writer.write(b"...")

    An error inside the `with`, or a killed process, leaves what was there before untouched. A name
    that ends in .gz, .zlib or .deflate is compressed, unless `compression` says otherwise. With
    `append` the new records come after those of the file, if there is one. About `buffer` bytes of
    records wait to be written together.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: Compression | None = None,
        append: bool = False,
        buffer: int = BUFFER,
    ) -> None:
        self.path = os.fspath(path)
        self.compression = compression or compression_for(self.path)
        self.append = append
        self.buffer = buffer
        self.count = 0
        self._output: Output | None = None
        self._packer: Packer | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_closed = False

    def write(self, record: Buffer) -> None:
        """Write one record's data."""
        if self._is_closed:
            raise self._closed()
        # Other memory may be changed before it is written.
        data = record if isinstance(record, bytes) else memoryview(record).tobytes()
        self._waiting.append(data)
        self._waiting_bytes += len(data) + 16
        self.count += 1
        if self._waiting_bytes >= self.buffer:
            self._flush()

    def write_all(self, records: Iterable[Buffer]) -> None:
        """Write many records."""
        for record in records:
            self.write(record)

    def write_framed(self, frames: Buffer, count: int) -> None:
        """Write `count` records that are in their frames already."""
        self._flush()
        self._write(frames)
        self.count += count

    def close(self) -> None:
        """Write what is left, and give the file its name; a second time does nothing."""
        if self._is_closed:
            return
        self._flush()
        if self._packer is not None:
            self._packer.finish()
        self._open().commit()
        self._output, self._is_closed = None, True

    def discard(self) -> None:
        """Leave no trace of this file."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.discard()
            return
        try:
            self.close()
        except BaseException:
            self.discard()
            raise

    def _open(self) -> Output:
        if self._is_closed:
            raise self._closed()
        if self._output is None:
            self._output = open_output(self.path)
            if self.compression is not Compression.NONE:
                self._packer = Packer(self._output.file, self.compression)
            if self.append:
                self._copy_old()
        return self._output

    def _closed(self) -> DataError:
        return DataError(f"{self.path} is closed: write to it with a new RecordWriter")

    def _copy_old(self) -> None:
        """Begin with the records that are there; a damaged file must be repaired first."""
        if exists(self.path):
            for chunk in read_chunks(self.path):
                self._write(chunk.data)

    def _flush(self) -> None:
        if self._waiting:
            self._write(codec.frame(self._waiting))
            self._waiting, self._waiting_bytes = [], 0

    def _write(self, frames: Buffer) -> None:
        output = self._open()
        if self._packer is not None:
            self._packer.write(frames)
        else:
            output.file.write(frames)


def shard_path(path: str, shard: int, shards: int) -> str:
    """The name of one shard.

    >>> shard_path("out/train.tfrecord", 3, 10)
    'out/train-00003-of-00010.tfrecord'
    """
    match = re.fullmatch(r"(.*?)(\.tfrecords?(?:\.gz|\.zlib|\.zz|\.deflate)?)?", path, re.DOTALL)
    assert match is not None
    return f"{match[1]}-{shard:05d}-of-{shards:05d}{match[2] or '.tfrecord'}"


class ShardedWriter:
    """Deals records out to `shards` files in turn; all get their names at the end.

    with ShardedWriter("out/train.tfrecord", shards=10) as writer:
        writer.write(b"...")        # out/train-00000-of-00010.tfrecord, -00001-..., ...
    """

    def __init__(
        self, path: str | os.PathLike[str], shards: int, *, compression: Compression | None = None
    ) -> None:
        if shards < 1:
            raise DataError(f"{shards} shards cannot be written: take 1 or more")
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
        """The files' names."""
        return [writer.path for writer in self.writers]

    def write(self, record: Buffer) -> None:
        """Write one record's data to the shard whose turn it is."""
        self.writers[self.count % len(self.writers)].write(record)
        self.count += 1

    def __enter__(self) -> Self:
        allow_open_files(len(self.writers) + 64)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                for writer in self.writers:
                    writer._flush()
                for writer in self.writers:
                    writer.close()
        finally:
            for writer in self.writers:
                writer.discard()
