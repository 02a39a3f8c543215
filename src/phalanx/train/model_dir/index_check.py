"""Checks the index of a TensorFlow checkpoint that may be hostile, before TensorFlow reads it.

TensorFlow believes what an index says: a negative dimension ends the process, and a text gets the
memory that its length asks for. An index is a table in LevelDB's format, whose values are
`BundleEntryProto`s: the type and shape of a tensor, and where its bytes are in the data files.
"""

import contextlib
import math
import struct
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from phalanx.errors import CheckpointError

_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
_TRAILER_BYTES = 5
_SLICE = b"\0"
"""How the names of slices begin, which have numbers in them."""
_MOST_NAME_BYTES = 16 << 20
_MOST_DIMENSIONS = 254
_CHECKSUM_BYTES, _MOST_NUMBER_BYTES = 4, 10


def check_index(path: str) -> None:
    """Raise a CheckpointError if a checkpoint claims more than its files can hold.

    Args:
        path: The checkpoint, whose files are `PATH.index` and `PATH.data-*`. The first format of
            TensorFlow 1 has no index, and is not checked.
    """
    if not tf.io.gfile.exists(f"{path}.index"):
        return
    # TensorFlow has no public name for these protos.
    from tensorflow.core.protobuf import tensor_bundle_pb2 as protos  # noqa: PLC0415

    try:
        with tf.io.gfile.GFile(f"{path}.index", "rb") as file:
            entries = dict(_read_table(file.read()))
        header = protos.BundleHeaderProto.FromString(entries.pop(b"", b""))
        with contextlib.closing(_DataFiles(path, header.num_shards)) as files:
            for name, entry in entries.items():
                if not name.startswith(_SLICE):
                    name.decode()
                _check_entry(protos.BundleEntryProto.FromString(entry), files)
    except (ValueError, TypeError, IndexError, struct.error, DecodeError) as error:
        raise CheckpointError(f"the index of {path} is damaged: {error}") from None


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names and values of a table, in linear time."""
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("it ends too early")
    footer = data[-_FOOTER_BYTES:]
    _, end = _read_handle(footer, 0)
    blocks, _ = _read_handle(footer, end)
    bytes_left, name_bytes_left = len(data), len(data) + _MOST_NAME_BYTES
    for _, handle in _read_block(data, blocks):
        block, _ = _read_handle(handle, 0)
        bytes_left -= block.stop - block.start
        for name, value in _read_block(data, block):
            # Names share their beginnings, so that a few bytes can be a long one.
            name_bytes_left -= len(name)
            if bytes_left < 0 or name_bytes_left < 0:
                raise ValueError("it refers to the same bytes again and again")
            yield name, value


def _read_block(data: bytes, where: slice) -> Iterator[tuple[bytes, bytes]]:
    block = data[where]
    kind = data[where.stop : where.stop + 1]
    if where.stop + _TRAILER_BYTES > len(data) or kind != b"\0" or len(block) < 4:
        raise ValueError("it has a block that is cut off, or compressed")
    (restarts,) = struct.unpack("<I", block[-4:])
    position, end, name = 0, len(block) - 4 - 4 * restarts, b""
    while position < end:
        shared, position = _read_number(block, position)
        added, position = _read_number(block, position)
        size, position = _read_number(block, position)
        if shared > len(name) or position + added + size > end:
            raise ValueError("it has a block that contradicts itself")
        name = name[:shared] + block[position : position + added]
        position += added + size
        yield name, block[position - size : position]


def _read_handle(data: bytes, position: int) -> tuple[slice, int]:
    """Read where a block is; return that, and where the handle ends."""
    offset, position = _read_number(data, position)
    size, position = _read_number(data, position)
    return slice(offset, offset + size), position


def _read_number(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] >= 0x80 and shift < 63:
        value |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | (data[position] & 0x7F) << shift, position + 1


class _DataFiles:
    """The data files of a checkpoint, each of which is opened once."""

    def __init__(self, path: str, count: int) -> None:
        self._path, self._count = path, count
        self._files: dict[int, tuple[Any, int]] = {}

    def close(self) -> None:
        for file, _ in self._files.values():
            file.close()

    def size(self, number: int) -> int:
        return self._open(number)[1]

    def read(self, number: int, offset: int, size: int) -> bytes:
        file, _ = self._open(number)
        file.seek(offset)
        return bytes(file.read(size))

    def _open(self, number: int) -> tuple[Any, int]:
        if number not in self._files:
            name = f"{self._path}.data-{number:05d}-of-{self._count:05d}"
            file = tf.io.gfile.GFile(name, "rb")
            self._files[number] = file, file.size()
        return self._files[number]


def _check_entry(entry: Any, files: _DataFiles) -> None:
    shape = [dimension.size for dimension in entry.shape.dim]
    if entry.shape.unknown_rank or len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError(f"a tensor has the shape {shape}")
    if entry.slices:
        # Each slice has an entry of its own.
        for part in entry.slices:
            _check_slice([(each.start, each.length) for each in part.extent], shape)
        return
    offset, size, count = entry.offset, entry.size, math.prod(shape)
    if min(offset, size) < 0 or offset + size > files.size(entry.shard_id):
        raise ValueError(f"a tensor of {size} bytes is outside of its file")
    dtype = tf.dtypes.as_dtype(entry.dtype)
    if dtype != dtype.base_dtype:
        raise ValueError(f"a tensor has the type {dtype.name}")
    if dtype == tf.string:
        _check_texts(entry, count, files)
    elif dtype == tf.variant:
        _check_variants(entry, count, files)
    elif not dtype.size or dtype.size * count != size:
        raise ValueError(f"a tensor of {dtype.name} and the shape {shape} has {size} bytes")


def _check_slice(extents: list[tuple[int, int]], shape: list[int]) -> None:
    fits = len(extents) == len(shape) and all(
        # A length of 0 means the whole dimension.
        0 <= start <= start + length <= size
        for (start, length), size in zip(extents, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"a tensor of the shape {shape} has the slice {extents}")


def _check_texts(entry: Any, count: int, files: _DataFiles) -> None:
    """Check texts, which follow their lengths and the checksum of these."""
    if count > entry.size:
        raise ValueError(f"{count} texts have {entry.size} bytes")
    most = min(entry.size, _MOST_NUMBER_BYTES * count)
    data, position, total = files.read(entry.shard_id, entry.offset, most), 0, 0
    for _ in range(count):
        length, position = _read_number(data, position)
        total += length
    if count and position + _CHECKSUM_BYTES + total != entry.size:
        raise ValueError(f"texts of {total} bytes have {entry.size} bytes")


def _check_variants(entry: Any, count: int, files: _DataFiles) -> None:
    """Check variants, each of which has its length before it and a checksum after it."""
    position = entry.offset
    for _ in range(min(count, entry.size + 1)):
        data = files.read(entry.shard_id, position, _MOST_NUMBER_BYTES)
        length, used = _read_number(data, 0)
        position += used + length + _CHECKSUM_BYTES
        if position > entry.offset + entry.size:
            raise ValueError(f"{count} variants have {entry.size} bytes")
