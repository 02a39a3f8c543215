"""A warm start from a checkpoint of TensorFlow: its index may claim anything."""

import struct
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

import tensorflow as tf
from tensorflow.core.framework import tensor_shape_pb2, tensor_slice_pb2
from tensorflow.core.protobuf import tensor_bundle_pb2 as protos
from tests.train.model_dir.test_warm_start import load

from phalanx.errors import CheckpointError
from phalanx.records.codec import codec
from phalanx.train.model_dir.index_check import check_index
from phalanx.train.model_dir.intact import find_intact

GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"
MANY = 1 << 40


def number(value: int) -> bytes:
    """A number in the format of protobuf and LevelDB."""
    data = b""
    while value >= 0x80:
        data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
    return data + bytes([value])


def seal(data: bytes) -> bytes:
    crc = codec.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def make_block(entries: list[tuple[bytes, bytes]], shared: int = 0) -> bytes:
    data = b"".join(
        number(shared if row else 0) + number(len(name)) + number(len(value)) + name + value
        for row, (name, value) in enumerate(entries)
    )
    return data + struct.pack("<II", 0, 1)


def make_table(block: bytes, times: int = 1) -> bytes:
    """An index with one block, to which its list of blocks refers so many times."""
    data, handles = b"", []
    for each in (block, make_block([])):
        handles.append(number(len(data)) + number(len(each)))
        data += each + b"\0" + seal(each + b"\0")
    last = make_block([(b"\xff", handles[0])] * times)
    handles.append(number(len(data)) + number(len(last)))
    data += last + b"\0" + seal(last + b"\0")
    footer = b"".join(handles[1:]).ljust(40, b"\0")
    return data + footer + struct.pack("<Q", 0xDB4775248B80FB57)


def make_entry(dtype: int, shape: list[int], size: int, offset: int = 0) -> bytes:
    dimensions = [tensor_shape_pb2.TensorShapeProto.Dim(size=each) for each in shape]
    entry = protos.BundleEntryProto(dtype=dtype, offset=offset, size=size)
    entry.shape.dim.extend(dimensions)
    return bytes(entry.SerializeToString())


def make_sliced(shape: list[int], start: int, length: int) -> bytes:
    entry = protos.BundleEntryProto.FromString(make_entry(1, shape, 0))
    extent = tensor_slice_pb2.TensorSliceProto.Extent(start=start, length=length)
    entry.slices.add().extent.append(extent)
    return bytes(entry.SerializeToString())


def write(path: Path, table: bytes, data: bytes = bytes(100)) -> str:
    path.with_suffix(".index").write_bytes(table)
    path.with_suffix(".data-00000-of-00001").write_bytes(data)
    return str(path)


HEADER = (b"", protos.BundleHeaderProto(num_shards=1).SerializeToString())
FLOAT, STRING, VARIANT = 1, 7, 21
ENTRIES = {
    "a negative dimension, at which TensorFlow aborts": (b"kernel", make_entry(FLOAT, [-5], 48)),
    "many numbers": (b"kernel", make_entry(FLOAT, [MANY], 48)),
    "many texts": (GRAPH, make_entry(STRING, [1 << 31], 100)),
    "many variants": (GRAPH, make_entry(VARIANT, [MANY], 100)),
    "a type that does not exist": (b"kernel", make_entry(99, [4, 3], 48)),
    "a reference": (b"kernel", make_entry(100 + FLOAT, [4, 3], 48)),
    "bytes after the end": (b"kernel", make_entry(FLOAT, [4, 3], 48, offset=60)),
    "bytes before the beginning": (b"kernel", make_entry(FLOAT, [4, 3], 48, offset=-60)),
    "a slice outside": (b"kernel", make_sliced([4], 3, 2)),
    "a slice of a negative length": (b"kernel", make_sliced([4], 0, -1)),
    "a name that is no text": (b"\xff", make_entry(FLOAT, [4, 3], 48)),
    "an entry that is none": (b"kernel", b"\xff"),
}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("prefix", ["", "encoder/"], ids=["whole", "by name"])
def test_impossible_tensors_are_an_error(name: str, prefix: str, tmp_path: Path) -> None:
    path = write(tmp_path / "weights", make_table(make_block([HEADER, ENTRIES[name]])))
    with pytest.raises(CheckpointError, match=r"index of .* is damaged"):
        load(path, prefix)


def test_text_that_is_longer_than_its_file_is_an_error(tmp_path: Path) -> None:
    """TensorFlow takes the memory that the length asks for, or crashes."""
    length = 1 << 36
    data = number(length) + seal(struct.pack("<Q", length)) + b"text"
    entry = (GRAPH, make_entry(STRING, [], len(data)))
    path = write(tmp_path / "weights", make_table(make_block([HEADER, entry])), data)
    with pytest.raises(CheckpointError, match="texts of 68719476736 bytes"):
        load(path)


@pytest.mark.parametrize("prefix", ["", "encoder/"], ids=["whole", "by name"])
def test_values_of_another_type_are_an_error(prefix: str, tmp_path: Path) -> None:
    path = str(tmp_path / "texts")
    texts = {"encoder/kernel": tf.fill([4, 3], "x"), "encoder/bias": tf.fill([3], "x")}
    tf.raw_ops.SaveV2(
        prefix=path, tensor_names=[*texts], shape_and_slices=["", ""], tensors=[*texts.values()]
    )
    with pytest.raises(CheckpointError):
        load(path, prefix)


@pytest.mark.parametrize("base", ["model.ckpt-1", "/etc/../model.ckpt-1", "../model.ckpt-1"])
def test_incremental_checkpoint_cannot_be_its_own_base(base: str, tmp_path: Path) -> None:
    path, kernel = str(tmp_path / "model.ckpt-1"), "encoder/kernel"
    tensors = {
        "_PHALANX_BASE": tf.constant(base),
        kernel: tf.zeros([4, 3]),
        f"{kernel}/.CHANGED/0/rows": tf.constant([0]),
        f"{kernel}/.CHANGED/0/values": tf.zeros([1, 3]),
    }
    specs = [""] * len(tensors)
    tf.raw_ops.SaveV2(
        prefix=path, tensor_names=[*tensors], shape_and_slices=specs, tensors=[*tensors.values()]
    )
    with pytest.raises(CheckpointError, match="not complete either"):
        load(path, "encoder/")
    with pytest.raises(CheckpointError, match="not complete either"):
        find_intact(str(tmp_path))


def test_small_index_does_not_become_large(tmp_path: Path) -> None:
    entry = make_entry(FLOAT, [0], 0)
    repeated = make_table(make_block([HEADER, *[(b"%04d" % n, entry) for n in range(300)]]), 99)
    # All but the first share the whole name before them.
    shared = make_table(make_block([(b"x" * 100_000, entry), *[(b"", entry)] * 3000], 100_000))
    assert len(shared) < 200_000
    for table in (repeated, shared):
        with pytest.raises(CheckpointError, match="the same bytes again and again"):
            check_index(write(tmp_path / "weights", table))


@pytest.mark.parametrize("cut", [0, 7, 47, 60, -1])
def test_index_that_ends_early_is_an_error(cut: int, tmp_path: Path) -> None:
    table = make_table(make_block([HEADER, (b"kernel", make_entry(FLOAT, [4, 3], 48))]))
    check_index(write(tmp_path / "weights", table))
    with pytest.raises(CheckpointError, match="damaged"):
        check_index(write(tmp_path / "weights", table[:cut]))


def test_every_kind_of_tensor_can_be_read(tmp_path: Path) -> None:
    values = {"text": ["", "ä", "x" * 300], "scalar": "a", "none": tf.zeros([0, 3], tf.string)}
    numbers = {each.name: tf.cast([1, 0], each) for each in (tf.bool, tf.bfloat16, tf.complex64)}
    every = {**values, **numbers, "empty": tf.zeros([0])}
    checkpoint = tf.train.Checkpoint(
        iterator=iter(tf.data.Dataset.range(9)),
        **{name: tf.Variable(value) for name, value in every.items()},
    )
    check_index(checkpoint.write(str(tmp_path / "many")))
    path = str(tmp_path / "sliced")
    parts = [tf.ones([2, 3]), tf.ones([2, 3])]
    specs = ["4 3 0,2:-", "4 3 2,2:-"]
    tf.raw_ops.SaveV2(prefix=path, tensor_names=["t", "t"], shape_and_slices=specs, tensors=parts)
    check_index(path)
