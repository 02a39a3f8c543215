"""The codec in Python, for systems without a C compiler; see `codec.Codec`.

The results are the same as those of the native codec, but it is much slower.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from phalanx.records.codec import RAGGED, FrameStatus, RawColumn, SourceColumn
from phalanx.records.types import ProtobufMessage, Value

if TYPE_CHECKING:
    from types import ModuleType

    from typing_extensions import Buffer

_MASK_DELTA = 0xA282EAD8
_HEADER, _OVERHEAD = 12, 16
_LISTS = {"bytes_list": 1, "float_list": 2, "int64_list": 3}
_FIELDS = {number: name for name, number in _LISTS.items()}
_KIND_NAMES = {1: "bytes", 2: "float", 3: "int64"}
_CODES = {1: "B", 2: "f", 3: "q"}

google_crc32c: ModuleType | None
try:
    google_crc32c = import_module("google_crc32c")
    CRC32C = "google-crc32c"
except ImportError:
    google_crc32c = None
    CRC32C = "python"


class DecodeError(ValueError):
    """Its arguments: the row, the feature or None, and a description."""


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _make_table()


def crc32c(data: Buffer, crc: int = 0) -> int:
    """The CRC-32C of data that follows data whose CRC-32C is `crc`."""
    if google_crc32c is not None:
        return int(google_crc32c.extend(crc, bytes(data)))
    return crc32c_by_table(data, crc)


def crc32c_by_table(data: Buffer, crc: int = 0) -> int:
    """The CRC-32C in pure Python."""
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: Buffer) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _read_frame(data: memoryview, at: int, check_data: bool) -> tuple[FrameStatus, int]:
    """The status of the frame at offset `at`, and the length of its data if known."""
    if len(data) - at < _HEADER:
        return FrameStatus.PARTIAL, 0
    length, length_crc = struct.unpack_from("<QI", data, at)
    if length_crc != _masked(data[at : at + 8]):
        return FrameStatus.BAD_LENGTH, 0
    if length > len(data) - at - _OVERHEAD:
        return FrameStatus.PARTIAL, length
    end = at + _HEADER + length
    if check_data and struct.unpack_from("<I", data, end)[0] != _masked(data[at + _HEADER : end]):
        return FrameStatus.BAD_DATA, length
    return FrameStatus.GOOD, length


def scan(data: Buffer, start: int, most: int, check_data: bool) -> tuple[Buffer, int, int, int]:
    """Find records; see `Codec.scan`."""
    view = memoryview(data).cast("B")
    if not 0 <= start <= len(view):
        raise ValueError("scan starts outside the data")
    spans, length, at = array("q"), 0, start
    status = FrameStatus.PARTIAL
    for _ in range(most):
        status, length = _read_frame(view, at, check_data)
        if status != FrameStatus.GOOD:
            break
        spans.extend((at + _HEADER, length))
        at += _OVERHEAD + length
    return spans, at, status, length


def find(data: Buffer, start: int) -> tuple[int, bool]:
    """Find the next undamaged record; see `Codec.find`."""
    view = memoryview(data).cast("B")
    for at in range(max(start, 0), len(view)):
        status, _ = _read_frame(view, at, True)
        if status in (FrameStatus.GOOD, FrameStatus.PARTIAL):
            return at, status == FrameStatus.GOOD
    return len(view), False


def frame(records: Iterable[Buffer]) -> Buffer:
    """The records as the bytes of a TFRecord file."""
    out = bytearray()
    for record in records:
        data = bytes(record)
        length = struct.pack("<Q", len(data))
        out += length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))
    return out


@cache
def message_classes() -> tuple[type[ProtobufMessage], type[ProtobufMessage]]:
    """The classes Example and SequenceExample, in a descriptor pool of their own."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    file = descriptor_pb2.FileDescriptorProto(
        name="phalanx/example.proto", package="phalanx", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto

    def add_message(name: str, *fields: tuple[str, int, int, str | None]) -> ProtobufMessage:
        message = file.message_type.add(name=name)
        for number, (field_name, label, type_, type_name) in enumerate(fields, 1):
            message.field.add(
                name=field_name, number=number, label=label, type=type_, type_name=type_name
            )
        return message

    def add_map(message: ProtobufMessage, field_name: str, value: str) -> None:
        entry_name = "".join(part.title() for part in field_name.split("_")) + "Entry"
        message.field.add(
            name=field_name,
            number=1,
            label=field.LABEL_REPEATED,
            type=field.TYPE_MESSAGE,
            type_name=f".phalanx.{message.name}.{entry_name}",
        )
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
        entry.field.add(
            name="value",
            number=2,
            label=field.LABEL_OPTIONAL,
            type=field.TYPE_MESSAGE,
            type_name=f".phalanx.{value}",
        )

    one, many, sub = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    add_message("BytesList", ("value", many, field.TYPE_BYTES, None))
    add_message("FloatList", ("value", many, field.TYPE_FLOAT, None))
    add_message("Int64List", ("value", many, field.TYPE_INT64, None))
    feature = add_message(
        "Feature",
        ("bytes_list", one, sub, ".phalanx.BytesList"),
        ("float_list", one, sub, ".phalanx.FloatList"),
        ("int64_list", one, sub, ".phalanx.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for number in range(3):
        feature.field[number].oneof_index = 0
    add_message("FeatureList", ("feature", many, sub, ".phalanx.Feature"))
    add_map(add_message("Features"), "feature", "Feature")
    add_map(add_message("FeatureLists"), "feature_list", "FeatureList")
    add_message("Example", ("features", one, sub, ".phalanx.Features"))
    add_message(
        "SequenceExample",
        ("context", one, sub, ".phalanx.Features"),
        ("feature_lists", one, sub, ".phalanx.FeatureLists"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    example, sequence_example = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"phalanx.{name}"))
        for name in ("Example", "SequenceExample")
    )
    return example, sequence_example


class _Column:
    """A column to which rows are added."""

    def __init__(self, name: bytes, kind: int, sequence: bool, width: int) -> None:
        self.name, self.kind, self.sequence, self.width = name, kind, sequence, width
        self.values: list[Value] = []
        self.step_offsets, self.row_offsets = array("i", [0]), array("i", [0])
        self.present: list[bool] = []
        self.lengths: list[int] = []
        self.step_widths: list[int] = []

    def add_missing(self, count: int = 1) -> None:
        self.present.extend([False] * count)
        if self.width == RAGGED:
            self.row_offsets.extend([self.row_offsets[-1]] * count)
        else:
            self.values.extend([b"" if self.kind == 1 else 0] * (self.width * count))

    def add(self, feature: ProtobufMessage, row: int) -> None:
        if self.sequence:
            for step in feature.feature:
                count = self._extend(step, row) or 0
                self.step_offsets.append(len(self.values))
                self.step_widths.append(count)
            length: int | None = len(feature.feature)
        else:
            length = self._extend(feature, row)
        if length is None:
            self.add_missing()
            return
        if self.width == RAGGED:
            end = len(self.step_offsets) - 1 if self.sequence else len(self.values)
            self.row_offsets.append(end)
        elif length != self.width:
            raise self._error(row, f"has {length} values, and {self.width} were expected")
        self.lengths.append(length)
        self.present.append(True)

    def _extend(self, feature: ProtobufMessage, row: int) -> int | None:
        """Append the values of a feature and return their number; None if it holds no list."""
        which = feature.WhichOneof("kind")
        if which is None:
            return None
        kind = _LISTS[which]
        if self.kind == 0:
            self.kind = kind
        if self.kind != kind:
            found, expected = _KIND_NAMES[kind], _KIND_NAMES[self.kind]
            raise self._error(row, f"holds {found} values, and {expected} values were expected")
        values = getattr(feature, which).value
        self.values.extend(values)
        return len(values)

    def _error(self, row: int, text: str) -> DecodeError:
        return DecodeError(row, self.name.decode("utf-8", "replace"), text)

    def finish(self) -> RawColumn:
        values: Buffer
        value_offsets = array("i", [0])
        if self.kind == 1:
            values = b"".join(self.values)
            for value in self.values:
                value_offsets.append(value_offsets[-1] + len(value))
        else:
            values = array(_CODES[self.kind or 3], self.values)
        validity = bytearray((len(self.present) + 7) // 8)
        for row, present in enumerate(self.present):
            validity[row // 8] |= present << row % 8
        return RawColumn(
            *(self.name, self.kind, self.sequence, self.width, values, value_offsets),
            *(self.step_offsets, self.row_offsets, validity, self.present.count(False)),
            *(min(self.lengths, default=0), max(self.lengths, default=0)),
            *(min(self.step_widths, default=0), max(self.step_widths, default=0)),
        )


def decode(
    data: Buffer,
    spans: Buffer,
    columns: Sequence[tuple[bytes, int, bool, int]] | None,
    sequence: bool,
) -> list[RawColumn]:
    """Decode messages to columns."""
    from google.protobuf.message import DecodeError as ProtobufError  # noqa: PLC0415

    view, pairs = memoryview(data).cast("B"), memoryview(spans).cast("B").cast("q")
    known = {(name, is_list): _Column(name, kind, is_list, width)
             for name, kind, is_list, width in columns or ()}  # fmt: skip
    message_class = message_classes()[1 if sequence else 0]
    for row in range(len(pairs) // 2):
        start, length = pairs[2 * row], pairs[2 * row + 1]
        if start < 0 or length < 0 or start + length > len(view):
            raise ValueError("spans lie outside the data, or hold 2 GiB or more")
        try:
            message = message_class.FromString(bytes(view[start : start + length]))
        except ProtobufError:
            raise DecodeError(row, None, "the message is damaged") from None
        found = {}
        features = message.context if sequence else message.features
        for name, feature in features.feature.items():
            found[name.encode(), False] = feature
        if sequence:
            for name, feature_list in message.feature_lists.feature_list.items():
                found[name.encode(), True] = feature_list
        if columns is None:
            for key in found:
                if key not in known:
                    known[key] = _Column(key[0], 0, key[1], RAGGED)
                    known[key].add_missing(row)
        for key, column in known.items():
            if key in found:
                column.add(found[key], row)
            else:
                column.add_missing()
    return [column.finish() for column in known.values()]


class _Source(NamedTuple):
    """A column to encode, with Python values."""

    name: str
    field: str
    sequence: bool
    span: Callable[[int], tuple[int, int]]
    values: Sequence[Value]
    step_offsets: memoryview | None
    present: Buffer | None


def _open_source(given: SourceColumn) -> _Source:
    column = SourceColumn(*given)
    data = memoryview(column.values).cast("B")
    values: Sequence[Value]
    if column.kind == 1:
        ends = _to_int64s(column.value_offsets)
        assert ends is not None
        values = [bytes(data[start:end]) for start, end in pairwise(ends)]
    else:
        size = column.value_count * (4 if column.kind == 2 else 8)
        values = array(_CODES[column.kind], bytes(data[:size]))
    rows = _to_int64s(column.row_offsets)

    def span(row: int) -> tuple[int, int]:
        if rows is None:
            return column.width * row, column.width * (row + 1)
        return rows[row], rows[row + 1]

    return _Source(
        *(column.name.decode(), _FIELDS[column.kind], column.sequence, span, values),
        *(_to_int64s(column.step_offsets), column.present),
    )


def _to_int64s(offsets: Buffer | None) -> memoryview | None:
    return None if offsets is None else memoryview(offsets).cast("B").cast("q")


def encode(
    columns: Sequence[SourceColumn], rows: int, sequence: bool, framed: bool
) -> tuple[Buffer, Buffer]:
    """Encode columns to messages."""
    sources = [_open_source(column) for column in columns]
    out, ends = bytearray(), array("q")
    for row in range(rows):
        message = message_classes()[1 if sequence else 0]()
        for source in sources:
            if source.present is not None and not memoryview(source.present).cast("B")[row]:
                continue
            first, end = source.span(row)
            if source.sequence:
                assert source.step_offsets is not None
                steps = message.feature_lists.feature_list[source.name]
                for step in range(first, end):
                    values = source.values[
                        source.step_offsets[step] : source.step_offsets[step + 1]
                    ]
                    _fill(steps.feature.add(), source.field, values)
            else:
                features = message.context if sequence else message.features
                _fill(features.feature[source.name], source.field, source.values[first:end])
        data = message.SerializeToString(deterministic=True)
        out += frame([data]) if framed else data
        ends.append(len(out))
    return out, ends


def _fill(feature: ProtobufMessage, field: str, values: Sequence[Value]) -> None:
    values_list = getattr(feature, field)
    values_list.SetInParent()
    values_list.value.extend(values)
