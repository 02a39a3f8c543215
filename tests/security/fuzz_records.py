"""Any bytes as records and as messages: both codecs agree, and memory stays in bounds."""

import contextlib
import tracemalloc
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.fuzzing import fuzz, replace_file, vary

from phalanx.errors import DataError
from phalanx.records import framing
from phalanx.records.codec import Codec, RawColumn, load_codec
from phalanx.records.compression import Compression, detect_compression

try:
    NATIVE = load_codec("native")
except ImportError:
    pytest.skip("the native codec is not built", allow_module_level=True)
PYTHON = load_codec("python")
COLUMNS = [
    (b"a", 3, False, 1),
    (b"b", 2, False, 3),
    (b"c", 1, False, 1),
    (b"d", 3, False, -1),
    (b"e", 1, False, -1),
]


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


numbers = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 127, 128, 2**31, 2**63 - 1, 2**63])
varints = numbers.map(varint) | st.sampled_from([b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 10])
lengths = st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


@st.composite
def groups(draw: Any) -> bytes:
    """An unknown group, whose end may be missing or another's.

    At 100 levels both codecs give up, but they count the messages around the group differently.
    """
    depth = int(draw(st.integers(1, 60) | st.integers(140, 160)))
    number = int(draw(st.integers(4, 9)))
    ends: int = draw(st.integers(max(0, depth - 1), depth + 1))
    return varint(number << 3 | 3) * depth + varint(number << 3 | 4) * ends


junk = st.one_of(
    st.binary(max_size=6),
    groups(),
    st.builds(lambda n, v: varint(n << 3) + v, st.integers(1, 20), varints),
    st.builds(lambda n, v: varint(n << 3 | 1) + v, st.integers(1, 20), st.binary(max_size=9)),
    st.builds(lambda n, v: varint(n << 3 | 5) + v, st.integers(1, 20), st.binary(max_size=5)),
    st.builds(field, st.integers(1, 20), st.binary(max_size=8)),
    st.builds(lambda n, size: varint(n << 3 | 2) + varint(size), st.integers(1, 9), lengths),
    st.builds(
        lambda n, more: b"\xc0" + n * b"\x80" + more, st.integers(0, 9), st.just(b"\x00\x01")
    ),
    st.builds(lambda n: b"\x42" + n * b"\x80" + b"\x00", st.integers(0, 10)),
)


def several(part: st.SearchStrategy[bytes], most: int = 3) -> st.SearchStrategy[bytes]:
    mostly = st.lists(part | part | part | junk, max_size=most)
    return mostly.map(b"".join)


packed = st.lists(varints, max_size=4).map(b"".join)
ints = several(st.builds(field, st.just(1), packed) | varints.map(lambda value: b"\x08" + value))
floats = several(
    st.builds(field, st.just(1), st.binary(max_size=9))
    | st.binary(min_size=4, max_size=4).map(lambda value: b"\x0d" + value)
)
texts = several(st.builds(field, st.just(1), st.binary(max_size=5)))
features = several(
    st.builds(field, st.just(1), texts)
    | st.builds(field, st.just(2), floats)
    | st.builds(field, st.just(3), ints),
    2,
)
steps = several(st.builds(field, st.just(1), features))
keys = st.builds(
    field, st.just(1), st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"", b"long name"])
)


def entries(value: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pair = st.builds(lambda key, each: key + field(2, each), keys, value)
    return several(st.builds(field, st.just(1), pair | several(keys | value, 3)))


examples = several(st.builds(field, st.just(1), entries(features)), 2)
sequences = several(
    st.builds(field, st.just(1), entries(features)) | st.builds(field, st.just(2), entries(steps)),
    3,
)
messages = st.lists(examples | sequences | st.binary(max_size=40), min_size=1, max_size=4)


def decode(codec: Codec, rows: list[bytes], columns: Any, sequence: bool) -> object:
    spans, at = array("q"), 0
    for row in rows:
        spans.extend((at, len(row)))
        at += len(row)
    try:
        found = codec.decode(b"".join(rows), spans, columns, sequence)
    except codec.DecodeError as error:
        return ("error", error.args[0])
    return sorted(_normalize(RawColumn(*column), len(rows)) for column in found)


def _normalize(column: RawColumn, rows: int) -> tuple[Any, ...]:
    """The parts of a column that readers use."""
    buffers: list[object] = [
        bytes(memoryview(each).cast("B")) for each in (column.values, column.row_offsets)
    ]
    if column.kind == 1:
        buffers.append(bytes(memoryview(column.value_offsets).cast("B")))
    if column.sequence:
        buffers.append(bytes(memoryview(column.step_offsets).cast("B")))
    if column.width != -1:
        buffers.pop(1)
    if column.missing:
        bits = int.from_bytes(memoryview(column.validity).cast("B"), "little")
        buffers.append(bits & (1 << rows) - 1)
    return (column.name, column.sequence, column.kind, column.missing, buffers)


PIECES = [b"\x0a", b"\x12", b"\x1a", b"\x08", b"\x00", b"\x01", b"\x80", b"\xff" * 9, b"a", b"\x0d"]


@fuzz
@given(messages, st.booleans(), st.booleans())
def test_codecs_agree_on_any_message(rows: list[bytes], discover: bool, sequence: bool) -> None:
    columns = None if discover else COLUMNS
    for last in vary(rows[-1], PIECES):
        tried = [*rows[:-1], last]
        assert decode(NATIVE, tried, columns, sequence) == decode(PYTHON, tried, columns, sequence)


frames = st.lists(st.binary(max_size=30), max_size=6).map(lambda rows: bytes(NATIVE.frame(rows)))


def make_header(length: int) -> bytes:
    data = length.to_bytes(8, "little")
    crc = NATIVE.crc32c(data)
    return data + (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


headers = (numbers | st.integers(0, 60)).map(make_header)
files = st.lists(frames | frames | headers | st.binary(max_size=20), max_size=6).map(b"".join)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("records") / "a.tfrecord"


def walk(codec: Codec, path: Path) -> list[object]:
    """The records and the damage of a file, as one codec finds them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "codec", codec)
        found: list[object] = []
        try:
            for part in framing.walk(str(path)):
                found += [part] if isinstance(part, framing.Damage) else list(part)
        except DataError as error:
            found.append(str(error))
        return found


@fuzz
@given(data=files)
def test_codecs_find_the_same_records(path: Path, data: bytes) -> None:
    for each in vary(data, PIECES):
        replace_file(path, each)
        found = walk(NATIVE, path)
        assert found == walk(PYTHON, path)
        with path.open("rb") as file, contextlib.suppress(DataError):
            if detect_compression(file) is Compression.NONE:
                records = sum(len(part) + 16 for part in found if isinstance(part, bytes))
                damage = sum(part.size for part in found if isinstance(part, framing.Damage))
                assert records + damage == len(each)


@fuzz
@given(data=files, kind=st.sampled_from([31, 15]))
def test_compressed_files_end_or_are_damaged(path: Path, data: bytes, kind: int) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, kind)
    for each in vary(packer.compress(data) + packer.flush(), PIECES):
        replace_file(path, each)
        tracemalloc.start()
        try:
            walk(NATIVE, path)
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()
