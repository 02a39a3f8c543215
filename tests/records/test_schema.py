from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import DataError
from phalanx.records import (
    Feature,
    Kind,
    Schema,
    read_table,
    write_examples,
)


def test_schema_saved_beside_the_data_is_used(tmp_path: Path) -> None:
    write_examples(tmp_path / "a.tfrecord", [{"x": [1], "y": 2}])
    schema = Schema((Feature("x", Kind.INT64, (None,)),))
    schema.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json") == schema
    assert read_table(tmp_path / "a.tfrecord").to_pydict() == {"x": [[1]]}


def test_arrow_schema_round_trip(tmp_path: Path) -> None:
    schema = Schema((
        Feature("a", Kind.INT64),
        Feature("b", Kind.FLOAT, (3,)),
        Feature("c", Kind.BYTES, (None,)),
        Feature("d", Kind.INT64, (None,), sequence=True),
    ))  # fmt: skip
    assert Schema.from_arrow(schema.to_arrow()) == schema


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a schema"),
        ("[]", "not a schema"),
        ('{"version": 2, "features": []}', "version 2"),
        ('{"version": 1, "features": [{"name": "a", "kind": "text"}]}', "not a schema"),
    ],
)
def test_loads_rejects_invalid_schemas(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Schema.loads(text)


def test_invalid_names_and_shapes_are_rejected() -> None:
    with pytest.raises(DataError, match="twice: a"):
        Schema((Feature("a", Kind.INT64), Feature("a", Kind.FLOAT)))
    with pytest.raises(DataError, match="shape"):
        Feature("a", Kind.INT64, (2, 2))
    with pytest.raises(DataError, match="no feature 'z': there are a"):
        Schema((Feature("a", Kind.INT64),)).select(["z"])
