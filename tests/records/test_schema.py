from pathlib import Path

import pytest

from phalanx.errors import DataError, RecordError
from phalanx.records import (
    Feature,
    Kind,
    RecordWriter,
    Schema,
    encode_examples,
    infer_schema,
    read_table,
    summarize,
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


@pytest.mark.parametrize("values", [[1, 1.5], [1.5, 1]])
def test_feature_of_integers_and_floats_is_a_float(
    tmp_path: Path, values: list[int | float]
) -> None:
    with RecordWriter(tmp_path / "mixed") as writer:
        for value in values:
            writer.write_all(encode_examples([{"a": value, "b": 7}]))
    for number, value in enumerate(values):
        write_examples(tmp_path / f"{number}", [{"a": value, "b": 7}])
    for paths in (tmp_path / "mixed", [tmp_path / "0", tmp_path / "1"]):
        a, b = summarize(paths).features
        assert (a.feature, b.feature.kind) == (Feature("a", Kind.FLOAT), Kind.INT64)
        assert (a.values, a.least, a.greatest) == (2, 1, 1.5)
    # The column can be left out; to read it would round large integers.
    assert read_table(tmp_path / "mixed", columns=["b"]).to_pydict() == {"b": [7, 7]}
    with pytest.raises(RecordError, match="'a' holds int64 values, and float values were expected"):
        read_table(tmp_path / "mixed")


def test_feature_list_hides_a_context_feature_of_the_same_name(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "1") as writer:
        writer.write_all(encode_examples([{"x": 1, "y": [[1.5], [2.5]]}]))
        writer.write_all(encode_examples([{"x": [[1], [2]]}]))
    schema = infer_schema(tmp_path / "1")
    assert [feature.describe() for feature in schema.features] == ["int64[steps]", "float[steps]"]


def test_range_of_a_summary_leaves_nan_out(tmp_path: Path) -> None:
    rows = [{"a": float("nan"), "b": float("nan")}, {"a": 1.5, "b": float("nan")}]
    write_examples(tmp_path / "1", rows)
    a, b = summarize(tmp_path / "1").features
    assert (a.values, a.least, a.greatest) == (2, 1.5, 1.5)
    assert (b.values, b.least, b.greatest) == (2, None, None)


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
