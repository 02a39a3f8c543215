from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import RecordError
from phalanx.records import (
    Feature,
    Kind,
    RecordWriter,
    encode_examples,
    infer_schema,
    summarize,
    write_examples,
)


def test_summary_describes_every_feature(tmp_path: Path) -> None:
    rows = [{"a": n, "b": [0.5] * (n % 3), "c": b"x" * n, "d": [1, 2]} for n in range(10)]
    write_examples(tmp_path / "a", [*rows, {"e": 1}])
    summary = summarize(tmp_path / "a")
    assert summary.records == 11
    found = {each.feature.name: each for each in summary.features}
    assert found["a"].feature == Feature("a", Kind.INT64)
    assert (found["a"].missing, found["a"].least, found["a"].greatest) == (1, 0, 9)
    assert found["b"].feature == Feature("b", Kind.FLOAT, (None,))
    assert (found["b"].shortest, found["b"].longest, found["b"].values) == (0, 2, 9)
    assert (found["c"].least, found["c"].greatest) == (0, 9)
    assert found["d"].feature.shape == (2,)
    assert found["e"].missing == 10


def test_features_may_first_appear_in_later_files(tmp_path: Path) -> None:
    write_examples(tmp_path / "1", {"a": list(range(70_000))})
    write_examples(tmp_path / "2", [{"b": [[1.0], [2.0]]}])
    summary = summarize([tmp_path / "1", tmp_path / "2"])
    assert [each.feature.describe() for each in summary.features] == ["int64", "float[steps]"]
    assert [each.missing for each in summary.features] == [1, 70_000]


def test_infer_schema_reads_at_most_n_records(tmp_path: Path) -> None:
    write_examples(tmp_path / "1", [{"a": 1}, {"a": 2}, {"b": 2.0}])
    assert infer_schema(tmp_path / "1", most=2).names == ["a"]


def test_change_of_kind_between_files_names_the_record(tmp_path: Path) -> None:
    write_examples(tmp_path / "1", [{"a": 1}])
    write_examples(tmp_path / "2", [{"b": 1}, {"a": b"text"}])
    with pytest.raises(RecordError, match=r"2: record 1 at .* holds bytes values, and int64"):
        summarize([tmp_path / "1", tmp_path / "2"])


def test_record_that_is_no_example_is_named(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a") as writer:
        writer.write_all([*encode_examples([{"x": 1}]), b"\xff\xff"])
    with pytest.raises(RecordError, match=r"record 1 at offset .*: the message is damaged"):
        summarize(tmp_path / "a")
