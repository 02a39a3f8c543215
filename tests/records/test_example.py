import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import DataError, RecordError
from phalanx.records import (
    Feature,
    Kind,
    RecordWriter,
    Schema,
    decode_examples,
    encode_examples,
    read_arrays,
    read_batches,
    read_records,
    read_rows,
    read_table,
    write_examples,
)

ROWS: list[dict[str, Any]] = [
    {"id": 1, "score": 0.5, "name": b"ann", "tags": [b"a", b"bc"], "box": [1.0, 2.0]},
    {"id": -2, "score": None, "name": b"", "tags": [], "box": [3.0, 4.0]},
    {"id": 2**63 - 1, "score": -1.5, "name": None, "tags": None, "box": None},
]


def delimited(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def entry(name: bytes, feature: bytes) -> bytes:
    return delimited(1, delimited(1, name) + delimited(2, feature))


def int64s(*values: int) -> bytes:
    return delimited(3, delimited(1, bytes(values)))


def rows_of(*messages: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode_examples(messages).to_pylist()
    return rows


def test_rows_round_trip() -> None:
    assert decode_examples(encode_examples(ROWS)).to_pylist() == [
        {name: row[name] for name in sorted(row)} for row in ROWS
    ]


def test_shapes_are_inferred() -> None:
    schema = decode_examples(encode_examples(ROWS)).schema
    assert schema.field("id").type == pa.int64()
    assert schema.field("score").type == pa.float32()
    assert schema.field("tags").type == pa.list_(pa.binary())
    assert schema.field("box").type == pa.list_(pa.float32(), 2)


def test_feature_lists_are_lists_of_lists() -> None:
    rows = [
        {"id": 1, "steps": [[1.0, 2.0], [], [3.0]], "words": [[b"a"], [b"b"]]},
        {"id": 2, "steps": [], "words": None},
    ]
    assert decode_examples(encode_examples(rows)).to_pylist() == rows


NUMBERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.lists(NUMBERS, max_size=20), st.lists(FLOATS, max_size=20), st.lists(st.binary(), max_size=5)
)


@settings(max_examples=150)
@given(st.data())
def test_any_columns_round_trip(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 12))
    columns: dict[str, pa.Array] = {}
    for name in data.draw(st.lists(st.text(max_size=12), max_size=5, unique=True)):
        values = data.draw(st.sampled_from([NUMBERS, FLOATS, st.binary(max_size=40)]))
        type_ = (
            pa.int64() if values is NUMBERS else pa.float32() if values is FLOATS else pa.binary()
        )
        shape = data.draw(st.sampled_from(["single", "list", "steps"]))
        cell: Any = values
        for _ in range(["single", "list", "steps"].index(shape)):
            cell, type_ = st.lists(cell, max_size=4), pa.list_(type_)
        cells = st.lists(st.none() | cell, min_size=rows, max_size=rows)
        columns[name] = pa.array(data.draw(cells), type_)
    table = pa.table(columns) if columns else pa.table({"x": pa.array([1] * rows, pa.int64())})
    features = Schema.from_arrow(table.schema)
    messages = encode_examples(table)
    assert len(messages) == rows
    decoded = decode_examples(messages, features)
    assert decoded.to_pylist() == table.to_pylist()


def test_unpacked_numbers_are_read() -> None:
    ints = delimited(3, b"\x08\x05\x08\x96\x01")
    floats = delimited(2, b"\x0d\0\0\x80\x3f\x0a\x04\0\0\0\x40")
    message = delimited(1, entry(b"i", ints) + entry(b"f", floats))
    assert rows_of(message) == [{"f": [1.0, 2.0], "i": [5, 150]}]


def test_last_entry_of_a_name_counts() -> None:
    message = delimited(1, entry(b"a", int64s(1)) + entry(b"a", int64s(2, 3)))
    assert rows_of(message) == [{"a": [2, 3]}]


def test_features_in_several_parts_are_merged() -> None:
    message = delimited(1, entry(b"a", int64s(1))) + delimited(1, entry(b"b", int64s(2)))
    assert rows_of(message) == [{"a": 1, "b": 2}]


def test_value_in_several_parts_is_merged() -> None:
    parts = delimited(2, int64s(1)) + delimited(1, b"a") + delimited(2, int64s(2))
    assert rows_of(delimited(1, delimited(1, parts))) == [{"a": [1, 2]}]


def test_value_in_many_parts_takes_no_extra_memory() -> None:
    def long(number: int, content: bytes) -> bytes:
        size, digits = len(content), bytearray()
        while size >= 128:
            digits.append(size & 127 | 128)
            size >>= 7
        return bytes([number << 3 | 2, *digits, size]) + content

    part = delimited(2, delimited(3, delimited(1, bytes(100))))
    message = long(1, long(1, delimited(1, b"a") + part * 30_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(rows_of(message)[0]["a"]) == 3_000_000
    # The values take 24 MB; concatenating the parts one by one would take gigabytes.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


def test_last_list_of_a_feature_counts() -> None:
    feature = delimited(2, delimited(1, b"\0\0\0\0")) + int64s(7)
    assert rows_of(delimited(1, entry(b"a", feature))) == [{"a": 7}]


def test_unknown_fields_are_skipped() -> None:
    unknown = b"\x78\x01" + b"\x7b\x08\x01\x7c" + b"\x75\0\0\0\0" + b"\x71" + bytes(8)
    feature = unknown + delimited(3, unknown + delimited(1, b"\x01"))
    assert rows_of(unknown + delimited(1, unknown + entry(b"a", feature))) == [{"a": 1}]


def test_empty_feature_is_missing_but_empty_list_is_not() -> None:
    message = delimited(1, entry(b"a", b"") + entry(b"b", delimited(3, b"")))
    other = delimited(1, entry(b"a", int64s(1)) + entry(b"b", int64s(1, 2)))
    assert rows_of(message, other) == [{"a": None, "b": []}, {"a": 1, "b": [1, 2]}]


def test_features_may_come_in_any_order() -> None:
    first = delimited(1, entry(b"a", int64s(1)) + entry(b"b", int64s(2)))
    second = delimited(1, entry(b"b", int64s(3)) + entry(b"c", int64s(4)) + entry(b"a", int64s(5)))
    assert rows_of(first, second) == [{"a": 1, "b": 2, "c": None}, {"a": 5, "b": 3, "c": 4}]


@pytest.mark.parametrize(
    "message",
    [b"\x0a", b"\x0a\x05abc", b"\x00", b"\xff" * 12, b"\x0b", b"\x0c", b"\x0f\x01"],
)
def test_decode_rejects_invalid_messages(message: bytes) -> None:
    with pytest.raises(RecordError, match="damaged"):
        decode_examples([message])


@pytest.mark.parametrize("feature", [b"\x1a\x02\x0a\x05", b"\x12\x04\x0a\x02\0\0"])
def test_decode_rejects_damaged_features(feature: bytes) -> None:
    with pytest.raises(RecordError):
        decode_examples([delimited(1, entry(b"a", feature))])


def test_change_of_kind_names_the_record(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a") as writer:
        writer.write_all(encode_examples([{"x": 1}] * 7))
        writer.write_all(encode_examples([{"x": b"text"}]))
    words = "record 7 at offset .*feature 'x' holds bytes values, and int64 values were expected"
    with pytest.raises(RecordError, match=words):
        read_table(tmp_path / "a")


def test_entries_with_unknown_fields_are_decoded() -> None:
    feature = delimited(3, delimited(1, b"\x05"))
    known = delimited(1, b"a") + delimited(2, feature)
    message = delimited(1, delimited(1, known + delimited(9, b"unknown")))
    assert decode_examples([message]).to_pylist() == [{"a": 5}]


def test_unexpected_number_of_values_names_the_record(tmp_path: Path) -> None:
    write_examples(tmp_path / "a", [{"x": [1]}, {"x": [1, 2]}])
    schema = Schema((Feature("x", Kind.INT64),))
    with pytest.raises(RecordError, match=r"record 1 .*'x' has 2 values, and 1 were expected"):
        read_table(tmp_path / "a", schema)


def test_only_selected_columns_are_decoded(tmp_path: Path) -> None:
    write_examples(tmp_path / "a", ROWS)
    assert read_table(tmp_path / "a", columns=["id"]).to_pydict() == {"id": [1, -2, 2**63 - 1]}


def test_batches_have_their_size_and_order(tmp_path: Path) -> None:
    write_examples(tmp_path / "a", {"x": np.arange(1000)})
    batches = list(read_batches(tmp_path / "a", batch_size=300))
    assert [batch.num_rows for batch in batches] == [300, 300, 300, 100]
    assert [x for batch in batches for x in batch["x"].to_pylist()] == list(range(1000))


def test_arrays_round_trip(tmp_path: Path) -> None:
    arrays = {
        "label": np.arange(50),
        "pixels": np.arange(150, dtype=np.float32).reshape(50, 3),
        "name": np.array([b"n%d" % i for i in range(50)], object),
    }
    write_examples(tmp_path / "a", arrays)
    found = read_arrays(tmp_path / "a")
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)


def test_arrays_may_be_empty_and_must_have_equal_lengths(tmp_path: Path) -> None:
    assert write_examples(tmp_path / "a", {"x": np.zeros((0, 3))}) == 0
    with pytest.raises(DataError, match=r"same number of rows, and have \{'x': 2, 'y': 1\}"):
        write_examples(tmp_path / "a", {"x": [1, 2], "y": np.zeros((1, 3))})


def test_ragged_arrays_are_arrays_of_arrays(tmp_path: Path) -> None:
    write_examples(tmp_path / "a", [{"x": [1, 2]}, {"x": []}, {"y": 1}])
    found = read_arrays(tmp_path / "a", columns=["x"])["x"]
    assert [None if x is None else x.tolist() for x in found] == [[1, 2], [], None]


def test_read_arrays_rejects_missing_numbers(tmp_path: Path) -> None:
    write_examples(tmp_path / "a", [{"x": 1}, {"y": 1}])
    with pytest.raises(DataError, match="'x' is missing in 1 examples"):
        read_arrays(tmp_path / "a")


def test_write_examples_distributes_rows_over_shards(tmp_path: Path) -> None:
    assert write_examples(tmp_path / "a.tfrecord", ROWS, shards=2) == 3
    assert [row["id"] for row in read_rows(tmp_path / "a-*")] == [1, 2**63 - 1, -2]


def test_rows_without_features_are_written(tmp_path: Path) -> None:
    assert write_examples(tmp_path / "a", [{}, {}]) == 2
    assert list(read_records(tmp_path / "a")) == [b"", b""]
