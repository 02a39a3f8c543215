"""Conversion of decoded features to Arrow columns without a copy, and of Arrow columns back."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa

from phalanx.errors import DataError
from phalanx.records.codec import RAGGED, RawColumn, SourceColumn
from phalanx.records.schema import Feature, Kind, Schema
from phalanx.records.types import Array, ArrayBuffer, Examples, Row, Value

BATCH_SIZE = 4096
_MOST_NULLS, _MOST_NULLS_PER_VALUE = 1 << 18, 16
_TYPES = {Kind.BYTES: pa.binary(), Kind.FLOAT: pa.float32(), Kind.INT64: pa.int64()}


@cache
def to_arrow_schema(schema: Schema) -> pa.Schema:
    return pa.schema([pa.field(feature.name, _arrow_type(feature)) for feature in schema.features])


def _arrow_type(feature: Feature) -> pa.DataType:
    type_ = _TYPES[feature.kind]
    if feature.sequence:
        return pa.list_(pa.list_(type_))
    if not feature.shape:
        return type_
    return pa.list_(type_) if feature.shape[0] is None else pa.list_(type_, feature.shape[0])


def to_batch(columns: list[RawColumn], rows: int, schema: Schema) -> pa.RecordBatch:
    """A batch that shares the memory of decoded columns, which are in the schema's order."""
    pairs = zip(columns, schema.features, strict=True)
    arrays = [_to_array(column, rows, feature) for column, feature in pairs]
    if not arrays:
        return empty_rows(rows)
    return pa.RecordBatch.from_arrays(arrays, schema=to_arrow_schema(schema))


def empty_rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def _to_array(column: RawColumn, rows: int, feature: Feature) -> pa.Array:
    validity = pa.py_buffer(column.validity) if column.missing else None
    is_scalar = not feature.sequence and not feature.shape
    buffers = [validity if is_scalar else None]
    values = pa.py_buffer(column.values)
    if feature.kind is Kind.BYTES:
        offsets = pa.py_buffer(column.value_offsets)
        buffers += [offsets, values]
        count = offsets.size // 4 - 1
    else:
        buffers.append(values)
        count = values.size // (4 if feature.kind is Kind.FLOAT else 8)
    array = pa.Array.from_buffers(_TYPES[feature.kind], rows if is_scalar else count, buffers)
    if is_scalar:
        return array
    if feature.sequence:
        steps = pa.py_buffer(column.step_offsets)
        array = pa.Array.from_buffers(
            pa.list_(array.type), steps.size // 4 - 1, [None, steps], children=[array]
        )
    buffers = [validity]
    if feature.width == RAGGED:
        buffers.append(pa.py_buffer(column.row_offsets))
    return pa.Array.from_buffers(_arrow_type(feature), rows, buffers, children=[array])


def from_arrow_schema(schema: pa.Schema) -> Schema:
    features = []
    for column in schema:
        type_, depth = _unwrap(column.type), 0
        shape: tuple[int | None, ...] = ()
        while is_list(type_):
            shape = (type_.list_size if pa.types.is_fixed_size_list(type_) else None,)
            type_, depth = _unwrap(type_.value_type), depth + 1
        if pa.types.is_null(type_):
            continue
        if depth > 2:
            raise _unusable(column.name, column.type)
        features.append(Feature(column.name, _kind_of(column.name, type_), shape, depth == 2))
    return Schema(tuple(features))


@dataclass
class Kinds:
    """The kinds of the columns of all batches of a file, which must not change between batches."""

    rows: int = 0
    known: dict[str, Kind] = field(default_factory=dict)

    def settle(self, name: str, kind: Kind) -> Kind:
        """The kind to write a column as: integers after floats become floats."""
        first = self.known.setdefault(name, kind)
        if kind is not first and (first, kind) != (Kind.FLOAT, Kind.INT64):
            raise DataError(
                f"column {name!r} holds {first} values in the first {self.rows} rows and {kind} "
                "values after them: give all of them one kind"
            )
        return first


def to_source_columns(batch: pa.RecordBatch, kinds: Kinds) -> list[SourceColumn]:
    """The columns for `Codec.encode`, sorted by name as protobuf sorts them."""
    sources = [
        _to_source(name, batch.column(index), kinds)
        for index, name in enumerate(batch.schema.names)
        if not pa.types.is_null(_innermost(batch.schema.field(index).type))
    ]
    return sorted(sources, key=lambda source: source.name)


def _to_source(name: str, array: pa.Array, kinds: Kinds) -> SourceColumn:
    present: ArrayBuffer = None
    if array.null_count:
        present = np.asarray(array.is_valid()).astype(np.uint8)
    array = _plain(array)
    row_offsets: ArrayBuffer = None
    step_offsets: ArrayBuffer = None
    step_count, depth = 0, 0
    if is_list(array.type):
        row_offsets, array = _open_list(name, array)
        depth = 1
        if is_list(array.type):
            step_offsets, array = _open_list(name, array)
            step_count, depth = len(step_offsets) - 1, 2
    if is_list(array.type):
        raise DataError(f"column {name!r} has lists nested three deep, which no feature can hold")
    kind = kinds.settle(name, _kind_of(name, array.type))
    values, value_offsets = _open_values(name, kind, array)
    return SourceColumn(
        name=name.encode(),
        kind=kind.number,
        sequence=depth == 2,
        width=RAGGED if depth else 1,
        values=values,
        value_count=len(array),
        value_offsets=value_offsets,
        step_offsets=step_offsets,
        step_count=step_count,
        row_offsets=row_offsets,
        present=present,
    )


def _open_list(name: str, array: pa.Array) -> tuple[ArrayBuffer, pa.Array]:
    """The offsets of a column of lists, and the values they refer to."""
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    offsets, values = np.asarray(array.offsets).astype(np.int64), _plain(array.values)
    # A null row may refer to arbitrary values, which `flatten` leaves out.
    if values.null_count and _plain(array.flatten()).null_count:
        raise DataError(f"column {name!r} has nulls inside its lists, which no feature can hold")
    return offsets, values


def _open_values(name: str, kind: Kind, array: pa.Array) -> tuple[ArrayBuffer, ArrayBuffer | None]:
    """The memory of the values, and for bytes the offsets into it."""
    try:
        if kind is Kind.BYTES:
            array = array.cast(pa.large_binary())
            _, offsets, data = array.buffers()
            if offsets is None:
                return b"", np.zeros(len(array) + 1, np.int64)
            first, last = array.offset, array.offset + len(array) + 1
            return data or b"", np.frombuffer(offsets, np.int64)[first:last]
        if array.null_count:
            array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
        # 64-bit floats are rounded to the nearest 32-bit float, as TensorFlow does.
        array = array.cast(_TYPES[kind], safe=kind is Kind.INT64)
    except pa.ArrowInvalid as error:
        raise DataError(f"column {name!r} cannot become a feature of {kind}: {error}") from None
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False)), None


def _plain(array: pa.Array) -> pa.Array:
    """The array without dictionary encoding and extension types."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array


def _unwrap(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def is_list(type_: pa.DataType) -> bool:
    is_any = pa.types.is_list(type_) or pa.types.is_large_list(type_)
    return bool(is_any or pa.types.is_fixed_size_list(type_))


def is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))


def _innermost(type_: pa.DataType) -> pa.DataType:
    type_ = _unwrap(type_)
    while is_list(type_):
        type_ = _unwrap(type_.value_type)
    return type_


def kind_of(type_: pa.DataType) -> Kind | None:
    """The kind that values of an Arrow type are stored as, if any."""
    types = pa.types
    if types.is_integer(type_) or types.is_boolean(type_):
        return Kind.INT64
    if types.is_floating(type_):
        return Kind.FLOAT
    is_small = types.is_binary(type_) or types.is_string(type_)
    is_large = types.is_large_binary(type_) or types.is_large_string(type_)
    return Kind.BYTES if is_small or is_large or types.is_fixed_size_binary(type_) else None


def _kind_of(name: str, type_: pa.DataType) -> Kind:
    kind = kind_of(type_)
    if kind is None:
        raise _unusable(name, type_)
    return kind


def _unusable(name: str, type_: pa.DataType) -> DataError:
    return DataError(
        f"column {name!r} has the type {type_}, which no feature can hold: make it integers, "
        "floats, text or bytes, or lists of these"
    )


def column_to_numpy(name: str, column: pa.ChunkedArray | pa.Array) -> Array:
    """An Arrow column as a NumPy array; see `read_arrays`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    type_ = column.type
    is_fixed = pa.types.is_fixed_size_list(type_)
    is_numeric = is_number(type_.value_type if is_fixed else type_)
    if is_numeric and column.null_count:
        raise DataError(f"feature {name!r} is missing in {column.null_count} examples, and an "
                        "array of numbers cannot hold missing values")  # fmt: skip
    if is_fixed and is_numeric:
        return np.asarray(column.flatten()).reshape(len(column), type_.list_size)
    if is_numeric:
        return np.asarray(column)
    result = np.empty(len(column), object)
    if pa.types.is_list(type_) and is_number(type_.value_type):
        result[:] = [item.values.to_numpy() if item.is_valid else None for item in column]
    else:
        result[:] = column.to_pylist()
    return result


def to_batches(data: Examples) -> Iterator[pa.RecordBatch]:
    """The data of `write_examples` as Arrow batches."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif isinstance(data, Mapping):
        columns = {name: _to_arrow(name, values) for name, values in data.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns must have the same number of rows, and have {lengths}")
        data = pa.table(columns)
    if isinstance(data, pa.Table):
        yield from data.to_batches(max_chunksize=BATCH_SIZE)
        return
    rows: list[Row] = []
    names: dict[str, None] = {}
    values = 0
    for item in data:
        if isinstance(item, pa.RecordBatch):
            if rows:
                yield _from_rows(rows, names)
            rows, names, values = [], {}, 0
            yield item
            continue
        rows.append(item)
        names.update(dict.fromkeys(item))
        values += len(item)
        # A batch has a value or a null for each row and name: rows without common names fill it.
        is_sparse = len(rows) * len(names) > _MOST_NULLS + _MOST_NULLS_PER_VALUE * values
        if len(rows) == BATCH_SIZE or is_sparse:
            yield _from_rows(rows, names)
            rows, names, values = [], {}, 0
    if rows:
        yield _from_rows(rows, names)


def _from_rows(rows: Sequence[Row], names: Iterable[str]) -> pa.RecordBatch:
    columns = {name: _to_arrow(name, [row.get(name) for row in rows]) for name in names}
    return pa.RecordBatch.from_pydict(columns) if columns else empty_rows(len(rows))


def _to_arrow(name: str, values: "Array | Sequence[Value] | pa.Array") -> pa.Array:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, np.ndarray) and values.ndim > 1:
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"column {name!r} cannot become a feature: {error}") from None
