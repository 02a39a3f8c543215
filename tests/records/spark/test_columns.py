from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from phalanx.errors import DataError
from phalanx.records import Feature, Kind, Schema, decode_examples
from phalanx.records.example import encode_examples
from phalanx.records.spark.columns import (
    RecordType,
    check_byte_array,
    encode,
    features_of,
    from_features,
    infer_columns,
    to_features,
)

VECTOR = pa.struct(
    [
        pa.field("type", pa.int8(), nullable=False),
        pa.field("size", pa.int32()),
        pa.field("indices", pa.list_(pa.int32())),
        pa.field("values", pa.list_(pa.float64())),
    ]
)


def dense(*values: float) -> dict[str, Any]:
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def round_trip(array: pa.Array, record_type: RecordType) -> pa.Array:
    batch = pa.RecordBatch.from_arrays([array], names=["c"])
    schema = features_of(batch.schema, record_type)
    messages = encode_examples(to_features(batch))
    return from_features(decode_examples(messages, schema), batch.schema).column(0)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int8(), [1, -128]),
        (pa.int16(), [1, -32768]),
        (pa.int32(), [1, -(2**31)]),
        (pa.int64(), [1, -(2**63)]),
        (pa.bool_(), [True, False]),
        (pa.float32(), [1.5, -0.25]),
        (pa.float64(), [1.5, -0.25]),
        (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.25")]),
        (pa.string(), ["", "Zürich"]),
        (pa.binary(), [b"", b"\xff\x00"]),
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_type_and_null_round_trips(type_: pa.DataType, values: list[Any], depth: int) -> None:
    rows: list[Any] = [*values, None]
    if depth == 1:
        rows = [values, [], values[:1], None]
    if depth == 2:
        rows = [[values, [], values], [], [[]], None]
    for _ in range(depth):
        type_ = pa.list_(pa.field("element", type_))
    record_type = RecordType.SEQUENCE_EXAMPLE if depth == 2 else RecordType.EXAMPLE
    array = pa.array(rows, type_)
    found = round_trip(array, record_type)
    assert found.type == type_
    assert found.equals(array)


def test_sliced_columns_round_trip() -> None:
    array = pa.array([[Decimal("1.5")], None, [Decimal("2.5"), Decimal("3.5")], []],
                     pa.list_(pa.decimal128(5, 1))).slice(1, 2)  # fmt: skip
    assert round_trip(array, RecordType.EXAMPLE).to_pylist() == array.to_pylist()


def test_vectors_are_stored_as_lists_and_read_as_dense() -> None:
    sparse = {"type": 0, "size": 4, "indices": [1, 3], "values": [5.0, 6.0]}
    array = pa.array([dense(1, 2), None, sparse, dense()], VECTOR)
    expected = [dense(1, 2), None, dense(0, 5, 0, 6), dense()]
    assert round_trip(array, RecordType.EXAMPLE).to_pylist() == expected
    dense_only = pa.array([dense(1, 2), None], VECTOR)
    assert round_trip(dense_only, RecordType.EXAMPLE).equals(dense_only)


def test_column_of_nulls_is_not_stored() -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(2), pa.array([1, 2])], names=["n", "c"])
    messages = encode_examples(to_features(batch))
    assert b"n" not in messages[0].replace(b"\n", b"")
    schema = features_of(batch.schema, RecordType.EXAMPLE)
    assert from_features(decode_examples(messages, schema), batch.schema).equals(batch)


def test_inferred_types_follow_the_lengths_of_the_lists() -> None:
    schema = Schema(
        (
            Feature("i", Kind.INT64),
            Feature("f", Kind.FLOAT, (3,)),
            Feature("s", Kind.BYTES, (None,)),
            Feature("b", Kind.BYTES),
            Feature("q", Kind.INT64, (), sequence=True),
        )
    )
    assert infer_columns(schema, frozenset({"b"})).types == [
        pa.int64(),
        pa.list_(pa.float32()),
        pa.list_(pa.string()),
        pa.binary(),
        pa.list_(pa.list_(pa.int64())),
    ]
    assert infer_columns(schema, frozenset({"*"})).field("s").type == pa.list_(pa.binary())


@pytest.mark.parametrize(
    "type_",
    [
        pa.timestamp("us"),
        pa.map_(pa.string(), pa.int64()),
        pa.struct([("x", pa.int64())]),
        pa.list_(pa.list_(pa.list_(pa.int64()))),
    ],
)
def test_unsupported_types_are_rejected(type_: pa.DataType) -> None:
    with pytest.raises(DataError, match=r"column 'c' has the type .* which no feature can hold"):
        features_of(pa.schema([("c", type_)]), RecordType.SEQUENCE_EXAMPLE)


def test_arrays_of_arrays_need_a_sequence_example() -> None:
    with pytest.raises(DataError, match="set the option recordType to SequenceExample"):
        features_of(pa.schema([("c", pa.list_(pa.list_(pa.int64())))]), RecordType.EXAMPLE)


@pytest.mark.parametrize(
    ("value", "type_", "message"),
    [
        (b"\xff", pa.string(), "bytes that are not text: read it as binary, .* binaryColumns"),
        (2**40, pa.int32(), "cannot be read as int32"),
        (1e9, pa.decimal128(4, 2), "cannot be read as decimal"),
    ],
)
def test_values_must_fit_the_requested_type(value: Any, type_: pa.DataType, message: str) -> None:
    columns = pa.schema([("c", type_)])
    decoded = decode_examples(
        encode_examples([{"c": value}]), features_of(columns, RecordType.EXAMPLE)
    )
    with pytest.raises(DataError, match=f"feature 'c' .*{message}"):
        from_features(decoded, columns)


def test_byte_arrays_need_one_column_without_nulls() -> None:
    check_byte_array(pa.schema([("any", pa.string())]))
    for columns in ([("a", pa.int64())], [("a", pa.binary()), ("b", pa.binary())]):
        with pytest.raises(DataError, match="one column, of binary, called byteArray; found a"):
            check_byte_array(pa.schema(columns))
    batch = pa.RecordBatch.from_pydict({"byteArray": [b"x", None]})
    with pytest.raises(DataError, match="a record cannot be null"):
        encode(batch, RecordType.BYTE_ARRAY)


def test_missing_feature_of_a_column_that_is_not_null_is_named() -> None:
    batch = pa.record_batch({"x": pa.array([1, None], pa.int64())})
    columns = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    with pytest.raises(DataError, match="no feature 'x', but the column is NOT NULL"):
        from_features(batch, columns)


def read_as(type_: pa.DataType, values: list[float | None]) -> Any:
    batch = pa.record_batch({"x": pa.array(values, pa.float32())})
    return from_features(batch, pa.schema([pa.field("x", type_)])).column(0).to_pylist()


def test_decimals_are_read_as_they_were_written() -> None:
    written = pa.array([Decimal("2.10"), None, Decimal("-0.07"), Decimal("12345.60")])
    stored = to_features(pa.record_batch({"x": written})).column(0).cast(pa.float32())
    assert read_as(pa.decimal128(10, 2), stored.to_pylist()) == written.to_pylist()


@pytest.mark.parametrize(("value", "scale"), [(2.5, 0), (0.123, 2)])
def test_floats_that_a_decimal_would_round_raise_an_error(value: float, scale: int) -> None:
    with pytest.raises(DataError, match=r"'x' cannot be read as decimal.* would be rounded to"):
        read_as(pa.decimal128(10, scale), [1.0, value])
