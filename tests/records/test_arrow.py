from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phalanx.errors import DataError
from phalanx.records import (
    decode_examples,
    encode_examples,
    read_table,
    write_examples,
)
from phalanx.records.example import BATCH_SIZE


def test_integers_after_floats_become_floats(tmp_path: Path) -> None:
    rows = [{"x": 1.5, "y": [0.5, 1.5]}] * BATCH_SIZE + [{"x": 2, "y": [3, 4]}]
    write_examples(tmp_path / "a", rows)
    table = read_table(tmp_path / "a")
    assert table.slice(BATCH_SIZE).to_pylist() == [{"x": 2.0, "y": [3.0, 4.0]}]
    assert table["x"].type == pa.float32()


@pytest.mark.parametrize(("later", "kind"), [(1.5, "float"), (b"one", "bytes")])
def test_write_rejects_a_change_of_kind(tmp_path: Path, later: Any, kind: str) -> None:
    rows = [{"x": 1}] * BATCH_SIZE + [{"x": later}]
    words = f"'x' holds int64 values in the first 4096 rows and {kind} values after them"
    for shards in (None, 2):
        with pytest.raises(DataError, match=words):
            write_examples(tmp_path / "a", iter(rows), shards=shards)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([1], pa.timestamp("s")), "has the type timestamp"),
        (pa.array([[1, None]]), "nulls inside its lists"),
        (pa.array([2**64 - 1], pa.uint64()), "cannot become a feature of int64"),
        (pa.array([[[[1]]]]), "lists nested three deep"),
        ([1, "a"], "cannot become a feature"),
    ],
)
def test_encode_rejects_unsupported_values(values: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        encode_examples({"x": values})


@pytest.mark.parametrize("value", [1, b"a", [1.5]])
def test_fixed_size_list_may_be_null(value: Any) -> None:
    inner = pa.array([value]).type
    values = [[value, value], None, [value, value]]
    rows = [{"x": x, "y": y} for y, x in enumerate(values)]
    table = pa.table({"x": pa.array(values, pa.list_(inner, 2)), "y": range(3)})
    assert decode_examples(encode_examples(table)).to_pylist() == rows
    assert decode_examples(encode_examples(table.slice(1))).to_pylist() == rows[1:]


def test_other_arrow_types_are_converted() -> None:
    table = pa.table(
        {
            "bool": [True, False],
            "small": pa.array([1, 2], pa.uint8()),
            "text": ["é", "b"],
            "coded": pa.array(["p", "q"]).dictionary_encode(),
            "double": [0.1, 0.2],
            "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        }
    )
    found = decode_examples(encode_examples(table.slice(1))).to_pylist()
    assert found == [{"bool": 0, "coded": b"q", "double": pytest.approx(0.2, rel=1e-6),
                      "fixed": [3, 4], "small": 2, "text": b"b"}]  # fmt: skip
