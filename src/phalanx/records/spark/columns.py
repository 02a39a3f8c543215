"""The mapping between Spark columns, as Arrow types, and features.

| Spark | feature |
| --- | --- |
| Byte, Short, Integer, Long, Boolean | int64 |
| Float, Double, Decimal | float |
| String, Binary | bytes |
| Vector, arrays of these | a list |
| arrays of arrays | a feature list of a SequenceExample |

A feature that a record lacks is read as null, and nulls are not written.
"""

from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import DataError
from phalanx.records.arrow import kind_of
from phalanx.records.codec import codec
from phalanx.records.example import encode_batch
from phalanx.records.schema import Feature, Kind, Schema
from phalanx.records.types import Buffer

BYTE_ARRAY = "byteArray"
"""The column of records that are not decoded."""

_INFERRED = {Kind.INT64: pa.int64(), Kind.FLOAT: pa.float32(), Kind.BYTES: pa.string()}
_VECTOR = {"type", "size", "indices", "values"}


class RecordType(StrEnum):
    EXAMPLE = "Example"
    SEQUENCE_EXAMPLE = "SequenceExample"
    BYTE_ARRAY = "ByteArray"


def infer_columns(schema: Schema, binary: frozenset[str]) -> pa.Schema:
    """The columns for features: single values if every list has one value, otherwise arrays.

    Bytes become strings, or binary if `binary` contains the feature or `*`.
    """
    fields = []
    for feature in schema.features:
        type_ = _INFERRED[feature.kind]
        if feature.kind is Kind.BYTES and (feature.name in binary or "*" in binary):
            type_ = pa.binary()
        if feature.sequence:
            type_ = pa.list_(pa.list_(type_))
        elif feature.shape:
            type_ = pa.list_(type_)
        fields.append(pa.field(feature.name, type_))
    return pa.schema(fields)


def features_of(columns: pa.Schema, record_type: RecordType) -> Schema:
    """The features that columns of these types are read from and written to."""
    return Schema(tuple(_feature_of(field, record_type) for field in columns))


def _feature_of(field: pa.Field, record_type: RecordType) -> Feature:
    type_, depth = field.type, 0
    while _is_list(type_):
        type_, depth = type_.value_type, depth + 1
    if _is_vector(type_):
        type_, depth = pa.float32(), depth + 1
    kind = _kind_of(type_)
    if kind is None or depth > 2:
        raise DataError(
            f"column {field.name!r} has the type {field.type}, which no feature can hold: make it "
            "numbers, booleans, text, binary or vectors, or arrays of these"
        )
    if depth == 2 and record_type is not RecordType.SEQUENCE_EXAMPLE:
        raise DataError(
            f"column {field.name!r} has arrays of arrays, which only a SequenceExample can hold: "
            "set the option recordType to SequenceExample"
        )
    return Feature(field.name, kind, (None,) if depth else (), depth == 2)


def _kind_of(type_: pa.DataType) -> Kind | None:
    if pa.types.is_decimal(type_):
        return Kind.FLOAT
    # A column of nulls is not stored, so that any kind will do.
    return Kind.BYTES if pa.types.is_null(type_) else kind_of(type_)


def from_features(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Convert decoded features to columns of exactly these types."""
    if not columns.names:
        return batch
    arrays = []
    for field in columns:
        try:
            array = _cast(batch.column(field.name), field.type)
        except pa.ArrowInvalid as error:
            raise _type_error(field, error) from None
        if array.null_count and not field.nullable:
            raise DataError(
                f"a record has no feature {field.name!r}, but the column is NOT NULL: "
                "make it nullable"
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _type_error(field: pa.Field, error: pa.ArrowInvalid) -> DataError:
    if "UTF8" in str(error):
        return DataError(
            f"feature {field.name!r} holds bytes that are not text: read it as binary, with the "
            f"option binaryColumns set to {field.name} or with a schema"
        )
    return DataError(f"feature {field.name!r} cannot be read as {field.type}: {error}")


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_ and not _is_list(type_):
        return array
    if _is_vector(type_):
        return _to_vectors(array, type_)
    if _is_list(type_):
        values = _cast(array.values, type_.value_type)
        # Large lists have 64-bit offsets; Spark uses them only if it is configured to.
        if pa.types.is_large_list(type_):
            array = array.cast(pa.large_list(array.type.value_type))
        return pa.Array.from_buffers(type_, len(array), array.buffers()[:2], children=[values])
    if pa.types.is_boolean(type_):
        return pc.not_equal(array, 0)
    if pa.types.is_decimal(type_):
        return _to_decimals(array, type_)
    if pa.types.is_null(type_):
        return pa.nulls(len(array))
    return array.cast(type_)


def _to_decimals(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert floats to decimals that stand for the same floats, as 2.10 for float32 2.0999999."""
    decimals = array.cast(pa.float64()).cast(type_)
    back = decimals.cast(pa.float64()).cast(array.type)
    if not back.equals(array):
        row = pc.index(pc.not_equal(back, array), True).as_py()
        raise pa.ArrowInvalid(f"{array[row]} would be rounded to {decimals[row]}")
    return decimals


def to_features(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert columns to types that can be encoded: vectors to lists, decimals to floats."""
    arrays = [_to_encodable(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _to_encodable(array: pa.Array) -> pa.Array:
    if _is_vector(array.type):
        return _from_vectors(array)
    if pa.types.is_decimal(array.type):
        return array.cast(pa.float64())
    if _is_list(array.type):
        inner = array.values
        values = _to_encodable(inner)
        if values is not inner:
            make = pa.large_list if pa.types.is_large_list(array.type) else pa.list_
            outer = make(values.type), len(array), array.buffers()[:2]
            return pa.Array.from_buffers(*outer, offset=array.offset, children=[values])
    return array


def encode(batch: pa.RecordBatch, record_type: RecordType) -> tuple[Buffer, int]:
    """Encode a batch as framed records; returns the bytes and the number of records."""
    if record_type is RecordType.BYTE_ARRAY:
        records = batch.column(0)
        if records.null_count:
            raise DataError("a record cannot be null: leave those rows out, or write empty ones")
        return codec.frame(records.cast(pa.large_binary()).to_pylist()), batch.num_rows
    return encode_batch(to_features(batch))[0], batch.num_rows


def check_byte_array(columns: pa.Schema) -> None:
    """Check that the only column holds the records to write."""
    if len(columns) != 1 or _kind_of(columns.field(0).type) is not Kind.BYTES:
        found = ", ".join(f"{field.name} ({field.type})" for field in columns) or "none"
        raise DataError(
            "with the recordType ByteArray there must be one column, of binary, called "
            f"{BYTE_ARRAY}; found {found}"
        )


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _is_vector(type_: pa.DataType) -> bool:
    """Is it the type in which Spark stores a Vector of its machine learning library?"""
    return pa.types.is_struct(type_) and {field.name for field in type_} == _VECTOR


def _to_vectors(array: pa.Array, type_: pa.StructType) -> pa.Array:
    """Convert lists to dense vectors, which have type 1 and only values."""
    children = {
        "type": pa.repeat(pa.scalar(1, pa.int8()), len(array)),
        "size": pa.nulls(len(array), pa.int32()),
        "indices": pa.nulls(len(array), type_.field("indices").type),
        "values": _cast(array, type_.field("values").type),
    }
    values = [children[field.name] for field in type_]
    return pa.StructArray.from_arrays(values, fields=list(type_), mask=array.is_null())


def _from_vectors(array: pa.StructArray) -> pa.Array:
    """Convert vectors to lists; sparse ones with all their zeros."""
    if not pc.any(pc.equal(array.field("type"), 0)).as_py():
        return pc.if_else(array.is_valid(), array.field("values"), None)
    kinds, sizes, indices, values = (
        array.field(name).to_pylist() for name in ("type", "size", "indices", "values")
    )
    for index, is_valid in enumerate(array.is_valid().to_pylist()):
        if not is_valid:
            values[index] = None
        elif kinds[index] != 1:
            row = np.zeros(sizes[index])
            row[indices[index]] = values[index]
            values[index] = row
    return pa.array(values, pa.list_(pa.float64()))
