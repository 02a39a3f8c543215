"""The codec in Python, for systems without a C compiler: much slower, with the same results."""

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

from phalanx.records.codec import (
    MOST_INT64S,
    MOST_PADDING,
    RAGGED,
    ColumnSpecs,
    FrameStatus,
    RawColumn,
    SourceColumn,
)
from phalanx.records.types import Buffer, ProtobufMessage, Value

if TYPE_CHECKING:
    from google.protobuf.descriptor_pool import DescriptorPool

_MASK_DELTA = 0xA282EAD8
_HEADER, _OVERHEAD = 12, 16
_MOST_COLUMNS = 16384
_LISTS = {"bytes_list": 1, "float_list": 2, "int64_list": 3}
_FIELDS = {number: name for name, number in _LISTS.items()}
_KIND_NAMES = {1: "bytes", 2: "float", 3: "int64"}
_CODES = {1: "B", 2: "f", 3: "q"}
_CONTINUED = bytes(range(0x80, 0x100))

google_crc32c: ModuleType | None
try:
    google_crc32c = import_module("google_crc32c")
    CRC32C = "google-crc32c"
except ImportError:
    google_crc32c = None
    CRC32C = "python"


class DecodeError(ValueError):
    """Its arguments: the row, the feature or None, and a description."""


def _table_entry(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


_TABLE = [_table_entry(byte) for byte in range(256)]


def crc32c(data: Buffer, crc: int = 0) -> int:
    if google_crc32c is not None:
        return int(google_crc32c.extend(crc, bytes(data)))
    return crc32c_by_table(data, crc)


def crc32c_by_table(data: Buffer, crc: int = 0) -> int:
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
    if not _is_header(data, at):
        return FrameStatus.BAD_LENGTH, 0
    length = struct.unpack_from("<Q", data, at)[0]
    if length > len(data) - at - _OVERHEAD:
        return FrameStatus.PARTIAL, length
    end = at + _HEADER + length
    if check_data and struct.unpack_from("<I", data, end)[0] != _masked(data[at + _HEADER : end]):
        return FrameStatus.BAD_DATA, length
    return FrameStatus.GOOD, length


def scan(data: Buffer, start: int, most: int, check_data: bool) -> tuple[Buffer, int, int, int]:
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


def find(data: Buffer, start: int) -> int:
    view = memoryview(data).cast("B")
    for at in range(max(start, 0), len(view)):
        if len(view) - at < _HEADER or _is_header(view, at):
            return at
    return len(view)


def _is_header(view: memoryview, at: int) -> bool:
    return bool(struct.unpack_from("<I", view, at + 8)[0] == _masked(view[at : at + 8]))


def frame(records: Iterable[Buffer]) -> Buffer:
    out = bytearray()
    for record in records:
        data = bytes(record)
        length = struct.pack("<Q", len(data))
        out += length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))
    return out


_MESSAGES = """
name: "phalanx/example.proto" package: "phalanx" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".phalanx.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".phalanx.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".phalanx.Int64List" oneof_index: 0 } }
message_type { name: "PackedInt64s"
  field { name: "part" number: 3 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "PackedSteps"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".phalanx.PackedInt64s" } }
message_type { name: "FeatureList"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".phalanx.Feature" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED
    type_name: ".phalanx.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".phalanx.Feature" } } }
message_type { name: "FeatureLists"
  field { name: "feature_list" number: 1 label: LABEL_REPEATED
    type_name: ".phalanx.FeatureLists.FeatureListEntry" }
  nested_type { name: "FeatureListEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".phalanx.FeatureList" } } }
message_type { name: "Entry" field { name: "key" number: 1 type: TYPE_BYTES }
  field { name: "value" number: 2 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Entries"
  field { name: "entry" number: 1 label: LABEL_REPEATED type_name: ".phalanx.Entry" } }
message_type { name: "ParsedExample"
  field { name: "features" number: 1 type_name: ".phalanx.Entries" } }
message_type { name: "ParsedSequenceExample"
  field { name: "features" number: 1 type_name: ".phalanx.Entries" }
  field { name: "feature_lists" number: 2 type_name: ".phalanx.Entries" } }
message_type { name: "Example" field { name: "features" number: 1 type_name: ".phalanx.Features" } }
message_type { name: "SequenceExample"
  field { name: "context" number: 1 type_name: ".phalanx.Features" }
  field { name: "feature_lists" number: 2 type_name: ".phalanx.FeatureLists" } }
"""


@cache
def _message_class(name: str) -> type[ProtobufMessage]:
    """A class of the messages above, in a descriptor pool of their own.

    In `ParsedExample` and `ParsedSequenceExample`, maps are lists of entries, because protobuf
    drops the entries of a map that have fields it does not know. Their values are bytes in one or
    more parts: like the codec in C, this one does not look into features that nobody asked for.
    """
    from google.protobuf import message_factory  # noqa: PLC0415

    descriptor = _pool().FindMessageTypeByName(f"phalanx.{name}")
    found: type[ProtobufMessage] = message_factory.GetMessageClass(descriptor)
    return found


@cache
def _pool() -> "DescriptorPool":
    from google.protobuf import descriptor_pb2 as descriptors  # noqa: PLC0415
    from google.protobuf import descriptor_pool, text_format  # noqa: PLC0415

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_MESSAGES, descriptors.FileDescriptorProto()))
    return pool


def message_classes() -> tuple[type[ProtobufMessage], type[ProtobufMessage]]:
    """The classes Example and SequenceExample."""
    return _message_class("Example"), _message_class("SequenceExample")


class _Budget:
    """The bytes left in all columns for rows that lack a feature, and for int64 values."""

    def __init__(self) -> None:
        self.padding = MOST_PADDING
        self.int64s = MOST_INT64S


def _make_values(kind: int) -> "list[bytes] | array[float]":
    return [] if kind == 1 else array(_CODES[kind or 3])


class _Column:
    def __init__(self, name: bytes, kind: int, sequence: bool, width: int, budget: _Budget) -> None:
        self.name, self.kind, self.sequence, self.width = name, kind, sequence, width
        self.discovered = kind == 0
        self._budget = budget
        self.values = _make_values(kind)
        self.step_offsets, self.row_offsets = array("i", [0]), array("i", [0])
        self.present = bytearray()
        self.lengths, self.step_widths = array("i"), array("i")

    def add_missing(self, row: int, count: int = 1) -> None:
        """Add rows that lack the feature, while `row` is decoded."""
        size = 4 if self.width == RAGGED else 4 + self.width * (8 if self.kind == 3 else 4)
        self._budget.padding -= count * size
        if self._budget.padding < 0:
            raise self._error(row, f"needs more than {MOST_PADDING >> 20} MiB for the rows that "
                "lack it: decode fewer rows at a time, or give it the shape (None,)",
            )  # fmt: skip
        self.present.extend(bytes(count))
        if self.width == RAGGED:
            self.row_offsets.extend(self.row_offsets[-1:] * count)
        elif isinstance(self.values, list):
            self.values.extend([b""] * (self.width * count))
        else:
            self.values.frombytes(bytes(self.values.itemsize * self.width * count))

    def add(self, data: bytes, row: int) -> None:
        """Add a row: a Feature, or the FeatureList of a sequence."""
        from google.protobuf.message import DecodeError as ProtobufError  # noqa: PLC0415

        try:
            self._check_int64s(data, row)
            feature = _message_class("FeatureList" if self.sequence else "Feature").FromString(data)
        except ProtobufError:
            raise self._error(row, "is damaged") from None
        if self.sequence:
            for step in feature.feature:
                count = self._extend(step, row) or 0
                self.step_offsets.append(len(self.values))
                self.step_widths.append(count)
            length: int | None = len(feature.feature)
        else:
            length = self._extend(feature, row)
        if length is None:
            self.add_missing(row)
            return
        if self.width == RAGGED:
            end = len(self.step_offsets) - 1 if self.sequence else len(self.values)
            self.row_offsets.append(end)
        elif length != self.width:
            raise self._error(row, f"has {length} values, and {self.width} were expected")
        self.lengths.append(length)
        self.present.append(1)

    def _check_int64s(self, data: bytes, row: int) -> None:
        """Count the values of a large feature before protobuf takes eight bytes for each."""
        if len(data) <= self._budget.int64s // 8:
            return
        if self.sequence:
            features = _message_class("PackedSteps").FromString(data).feature
        else:
            features = [_message_class("PackedInt64s").FromString(data)]
        # The last byte of each value is below 128.
        packed = (part.translate(None, _CONTINUED) for each in features for part in each.part)
        if 8 * sum(map(len, packed)) > self._budget.int64s:
            raise self._too_many_int64s(row)

    def _too_many_int64s(self, row: int) -> DecodeError:
        text = (
            f"has more int64 values than fit into {MOST_INT64S >> 20} MiB: decode fewer rows at a "
        )
        return self._error(row, f"{text}time, or write it as bytes or floats")

    def _extend(self, feature: ProtobufMessage, row: int) -> int | None:
        """Append the values of a feature and return their number; None if it holds no list."""
        which = feature.WhichOneof("kind")
        if which is None:
            return None
        kind = _LISTS[which]
        values = getattr(feature, which).value
        if kind == 3:
            self._budget.int64s -= 8 * len(values)
            if self._budget.int64s < 0:
                raise self._too_many_int64s(row)
        if self.kind == 0:
            self.kind, self.values = kind, _make_values(kind)
        # A discovered column holds floats if some of its values are int64.
        if self.discovered and {self.kind, kind} == {2, 3}:
            if self.kind == 3:
                self.values = array("f", cast("array[float]", self.values))
            self.kind = kind = 2
        if self.kind != kind:
            found, expected = _KIND_NAMES[kind], _KIND_NAMES[self.kind]
            raise self._error(row, f"holds {found} values, and {expected} values were expected")
        self.values.extend(values)
        return len(values)

    def _error(self, row: int, text: str) -> DecodeError:
        return DecodeError(row, self.name.decode("utf-8", "replace"), text)

    def finish(self) -> RawColumn:
        values: Buffer
        value_offsets = array("i", [0])
        if isinstance(self.values, list):
            values = b"".join(self.values)
            for value in self.values:
                value_offsets.append(value_offsets[-1] + len(value))
        else:
            values = self.values
        validity = bytearray((len(self.present) + 7) // 8)
        for row, present in enumerate(self.present):
            validity[row // 8] |= present << row % 8
        return RawColumn(
            *(self.name, self.kind, self.sequence, self.width, values, value_offsets),
            *(self.step_offsets, self.row_offsets, validity, self.present.count(0)),
            *(min(self.lengths, default=0), max(self.lengths, default=0)),
            *(min(self.step_widths, default=0), max(self.step_widths, default=0)),
        )


def decode(
    data: Buffer, spans: Buffer, columns: ColumnSpecs | None, sequence: bool
) -> list[RawColumn]:
    from google.protobuf.message import DecodeError as ProtobufError  # noqa: PLC0415

    view, pairs = memoryview(data).cast("B"), memoryview(spans).cast("B").cast("q")
    budget = _Budget()
    known = {(name, is_list): _Column(name, kind, is_list, width, budget)
             for name, kind, is_list, width in columns or ()}  # fmt: skip
    message_class = _message_class("ParsedSequenceExample" if sequence else "ParsedExample")
    for row in range(len(pairs) // 2):
        start, length = pairs[2 * row], pairs[2 * row + 1]
        if start < 0 or length < 0 or start + length > len(view):
            raise ValueError("spans lie outside the data, or hold 2 GiB or more")
        try:
            message = message_class.FromString(bytes(view[start : start + length]))
        except ProtobufError:
            raise DecodeError(row, None, "the message is damaged") from None
        found = {(entry.key, False): entry.value for entry in message.features.entry}
        if sequence:
            found |= {(entry.key, True): entry.value for entry in message.feature_lists.entry}
        if columns is None:
            for key in found:
                if key not in known:
                    if len(known) == _MOST_COLUMNS:
                        what = f"there are more than {_MOST_COLUMNS} different features"
                        raise DecodeError(row, None, f"{what}: give a schema")
                    known[key] = _Column(key[0], 0, key[1], RAGGED, budget)
                    known[key].add_missing(row, row)
        for key, column in known.items():
            if key in found:
                column.add(b"".join(found[key]), row)
            else:
                column.add_missing(row)
    return [column.finish() for column in known.values()]


class _Source(NamedTuple):
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
                for begin, stop in pairwise(source.step_offsets[first : end + 1]):
                    _fill(steps.feature.add(), source.field, source.values[begin:stop])
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
