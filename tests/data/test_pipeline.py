from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from phalanx.data import Pipeline, Share
from phalanx.errors import DataError, RecordError
from phalanx.records import RecordIndex, Schema, read_table, write_examples
from phalanx.train.context import Context

COUNT = 5000


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Fewer files than workers, and of different sizes."""
    numbers = np.arange(COUNT)
    for name, part in (("a.tfrecord", numbers[:300]), ("b.tfrecord", numbers[300:])):
        pixels = [bytes([n % 251] * 12) for n in part]
        write_examples(tmp_path / name, {"id": part, "pixels": pixels})
    return [str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")]


def ids(dataset: Any) -> list[int]:
    return [int(number) for batch in dataset for number in batch["id"]]


def test_every_example_comes_once_with_its_own_values(files: list[str]) -> None:
    pipeline = Pipeline.from_records(files, seed=1, raw={"pixels": "uint8"})
    seen: list[int] = []
    for batch in pipeline.dataset(64, epochs=1):
        assert batch["pixels"].dtype == tf.uint8
        np.testing.assert_array_equal(batch["pixels"][:, 11], batch["id"].numpy() % 251)
        seen += batch["id"].numpy().tolist()
    assert len(pipeline) == COUNT
    assert sorted(seen) == list(range(COUNT))
    assert seen != list(range(COUNT))


def test_training_taken_up_again_goes_on_exactly(files: list[str]) -> None:
    """Three workers for 40 steps, then two for 60, then five to the end: as if it were one."""
    pipeline = Pipeline.from_records(files, seed=7)
    whole = ids(pipeline.dataset(10, epochs=2))
    position, taken = 0, dict[int, int]()
    for workers, steps in ((3, 40), (2, 60), (5, None)):
        for shard in range(workers):
            batches = pipeline.batches(
                10, share=Share(workers, shard), start=position, epochs=2, drop_remainder=False
            )
            for step, (columns, first) in enumerate(batches):
                if step == steps:
                    break
                for place, number in enumerate(columns["id"]):
                    taken[first + place * workers] = int(number)
        position += workers * 10 * (steps or 0)
    assert taken == dict(enumerate(whole))


def test_the_same_seed_gives_the_same_order_in_a_dataset(files: list[str]) -> None:
    first = ids(Pipeline.from_records(files, seed=3).dataset(100, epochs=1))
    again = ids(Pipeline.from_records(files, seed=3).dataset(100, epochs=1, start=1000))
    assert first[1000:] == again
    assert first != ids(Pipeline.from_records(files, seed=4).dataset(100, epochs=1))


def test_each_pass_over_a_dataset_has_an_order_and_seeds_of_its_own(files: list[str]) -> None:
    pipeline = Pipeline.from_records(files, seed=1).map(
        lambda batch, seed: {**batch, "seed": seed[None]}, seeded=True
    )
    dataset = pipeline.dataset(500, epochs=1)
    first, second = ids(dataset), ids(dataset)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second
    seeds = [tuple(batch["seed"][0].numpy()) for _ in range(2) for batch in dataset]
    assert len(set(seeds)) == 20


def test_without_epochs_it_never_ends_and_batches_are_full(files: list[str]) -> None:
    dataset = Pipeline.from_records(files, seed=3).dataset(1024, share=Share(3, 1))
    assert dataset.element_spec["id"].shape == (1024,)
    sizes = [len(batch["id"]) for batch in dataset.take(12)]
    assert sizes == [1024] * 12


def test_without_a_seed_the_order_is_that_of_the_files(files: list[str]) -> None:
    assert ids(Pipeline.from_records(files).dataset(64, epochs=1)) == list(range(COUNT))


def test_an_index_that_was_saved_with_a_larger_stride_is_not_used(files: list[str]) -> None:
    for path in files:
        RecordIndex.build(path, stride=10).save()
    assert ids(Pipeline.from_records(files).dataset(64, epochs=1)) == list(range(COUNT))


def test_compressed_files_are_read_in_any_order(tmp_path: Path) -> None:
    write_examples(tmp_path / "a.tfrecord.gz", {"id": np.arange(3000)})
    found = ids(Pipeline.from_records(tmp_path / "a.tfrecord.gz", seed=1).dataset(50, epochs=1))
    assert sorted(found) == list(range(3000))


def test_remote_files_are_read(files: list[str]) -> None:
    write_examples("memory://data/a.tfrecord", {"id": np.arange(3000)})
    found = ids(Pipeline.from_records("memory://data/*.tfrecord", seed=1).dataset(50, epochs=1))
    assert sorted(found) == list(range(3000))


def test_functions_are_applied_to_batches_with_seeds_that_belong_to_the_position(
    files: list[str],
) -> None:
    def change(batch: Any, seed: Any) -> Any:
        return batch["id"], tf.random.stateless_uniform((), seed)

    pipeline = Pipeline.from_records(files, seed=3).map(change, seeded=True)
    pipeline = pipeline.map(lambda pair: {"id": pair[0] * 2, "random": pair[1]})
    whole = list(pipeline.dataset(100, epochs=1).as_numpy_iterator())
    again = list(pipeline.dataset(100, epochs=1, start=2000).as_numpy_iterator())
    assert len({float(batch["random"]) for batch in whole}) == len(whole)
    assert [float(b["random"]) for b in whole[20:]] == [float(b["random"]) for b in again]
    assert sorted(n for batch in whole for n in batch["id"]) == list(range(0, 2 * COUNT, 2))


def test_lists_and_sequences_become_ragged_tensors(tmp_path: Path) -> None:
    rows = [{"id": n, "tags": [b"x"] * (n % 3), "steps": [[1.0] * n, []]} for n in range(20)]
    write_examples(tmp_path / "a", rows)
    [batch] = Pipeline.from_records(tmp_path / "a").dataset(20, epochs=1)
    assert batch["tags"].to_list() == [row["tags"] for row in rows]
    assert batch["steps"].to_list() == [row["steps"] for row in rows]


def test_a_missing_feature_needs_a_default(tmp_path: Path) -> None:
    write_examples(tmp_path / "a", [{"x": 1, "id": 0}, {"id": 1}])
    with pytest.raises(DataError, match=r"'x' is missing .*defaults=\{'x': 0\}"):
        list(Pipeline.from_records(tmp_path / "a").batches(2, epochs=1))
    [(columns, _)] = Pipeline.from_records(tmp_path / "a", defaults={"x": -1}).batches(2, epochs=1)
    assert columns["x"].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("id", "uint8", "it is int64, and raw is for one value of bytes"),
        ("words", "uint8", "it is bytes\\[2\\], and raw is for one value of bytes"),
        ("pixels", "uint9", "cannot be read as uint9"),
    ],
)
def test_raw_is_for_bytes_that_are_numbers(
    tmp_path: Path, name: str, dtype: str, words: str
) -> None:
    write_examples(tmp_path / "a", [{"id": 1, "words": [b"a", b"b"], "pixels": b"ab"}])
    with pytest.raises(DataError, match=words):
        Pipeline.from_records(tmp_path / "a", raw={name: dtype})


def test_damage_names_the_record(files: list[str]) -> None:
    index = RecordIndex.build(files[1])
    data = bytearray(Path(files[1]).read_bytes())
    data[index.offsets[17] + 14] ^= 1
    Path(files[1]).write_bytes(data)
    schema = Schema.from_arrow(read_table(files[0]).schema)
    with pytest.raises(RecordError) as caught:
        list(Pipeline.from_records(files, schema, seed=1).batches(10, epochs=1))
    assert (caught.value.path, caught.value.index) == (files[1], 17)
    assert caught.value.offset == index.offsets[17]


def test_a_compressed_file_that_is_cut_short_names_the_place(tmp_path: Path) -> None:
    write_examples(tmp_path / "whole.gz", {"id": np.arange(100)})
    whole = (tmp_path / "whole.gz").read_bytes()
    schema = Schema.from_arrow(read_table(tmp_path / "whole.gz").schema)
    # In the middle, and in the header of a second part that would begin another record.
    for cut in (whole[: len(whole) // 2], whole + whole[:9]):
        (tmp_path / "a.gz").write_bytes(cut)
        with pytest.raises(RecordError, match=r"a\.gz: record \d+ .*gzip data is cut short"):
            len(Pipeline.from_records(tmp_path / "a.gz", schema))


def test_no_examples_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DataError, match="no examples"):
        list(Pipeline.from_records(tmp_path / "a").batches(10, epochs=1))


def check_source(pipeline: Pipeline) -> None:
    for seed in (None, 5):
        found = ids(Pipeline(pipeline.source, seed).dataset(7, epochs=1))
        assert sorted(found) == list(range(200))
        assert (found == sorted(found)) == (seed is None)


def test_from_arrays() -> None:
    pictures = np.arange(200 * 12).reshape(200, 2, 2, 3)
    pipeline = Pipeline.from_arrays({"id": np.arange(200), "picture": pictures}, seed=1)
    check_source(pipeline)
    for batch in pipeline.dataset(10, epochs=1):
        np.testing.assert_array_equal(batch["picture"], pictures[batch["id"].numpy()])
    with pytest.raises(DataError, match="same number of rows"):
        Pipeline.from_arrays({"a": np.arange(2), "b": np.arange(3)})


def table() -> pa.Table:
    return pa.table({"id": np.arange(200), "word": [f"w{n}" for n in range(200)],
                     "list": [[n] * (n % 3) for n in range(200)]})  # fmt: skip


def test_from_table_and_parquet(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=30)
    for pipeline in (Pipeline.from_table(table()), Pipeline.from_parquet(tmp_path / "a.parquet")):
        check_source(pipeline)
        batch = next(iter(pipeline.dataset(5, epochs=1)))
        assert batch["word"].numpy().tolist() == [b"w0", b"w1", b"w2", b"w3", b"w4"]
        assert batch["list"].to_list() == [[], [1], [2, 2], [], [4]]
    with pytest.raises(DataError, match="not a Parquet file"):
        (tmp_path / "b.parquet").write_text("nope")
        len(Pipeline.from_parquet(tmp_path / "b.parquet"))


def test_damage_inside_a_parquet_file_is_said(damaged_parquet: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file that can be read"):
        next(Pipeline.from_parquet(damaged_parquet).batches(10))


def test_from_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,word\n" + "".join(f"{n},w{n}\n" for n in range(200)))
    check_source(Pipeline.from_csv(tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text("id,word\n0.5,w\n")
    with pytest.raises(DataError, match="do not have the same columns and types"):
        Pipeline.from_csv(tmp_path / "*.csv")


def test_from_binary_records_of_a_fixed_length(tmp_path: Path) -> None:
    rows = np.zeros(200, np.dtype([("id", "uint8"), ("image", "uint8", (3, 2, 2))]))
    rows["id"] = np.arange(200)
    rows["image"] = np.arange(200)[:, None, None, None]
    (tmp_path / "1.bin").write_bytes(rows[:50].tobytes())
    (tmp_path / "2.bin").write_bytes(rows[50:].tobytes())
    layout = {"id": "uint8", "image": ("uint8", (3, 2, 2))}
    pipeline = Pipeline.from_binary(tmp_path / "*.bin", layout, seed=1)
    check_source(pipeline)
    for batch in pipeline.dataset(9, epochs=1):
        np.testing.assert_array_equal(batch["image"][:, 2, 1, 1], batch["id"])
    (tmp_path / "3.bin").write_bytes(b"x" * 14)
    with pytest.raises(DataError, match="1 are left over"):
        len(Pipeline.from_binary(tmp_path / "*.bin", layout))


@pytest.mark.parametrize(("options", "batches"), [({}, 3), ({"drop_remainder": True}, 2)])
def test_a_dataset_with_an_end_knows_its_length(options: dict[str, Any], batches: int) -> None:
    context = Context(num_shards=2, shard=1)
    pipeline = Pipeline.from_arrays({"x": np.arange(10)})
    dataset = pipeline.dataset(2, share=context, epochs=1, **options)
    assert int(dataset.cardinality()) == len(list(dataset)) == batches
