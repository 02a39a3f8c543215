from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.data.batches import read_ids

from phalanx.data import Pipeline, Share
from phalanx.errors import DataError
from phalanx.train.context import Context

COUNT = 5000


def test_every_example_is_read_once_with_its_values(files: list[str]) -> None:
    pipeline = Pipeline.from_records(files, seed=1, raw={"pixels": "uint8"})
    seen: list[int] = []
    for batch in pipeline.dataset(64, epochs=1):
        assert batch["pixels"].dtype == tf.uint8
        np.testing.assert_array_equal(batch["pixels"][:, 11], batch["id"].numpy() % 251)
        seen += batch["id"].numpy().tolist()
    assert len(pipeline) == COUNT
    assert sorted(seen) == list(range(COUNT))
    assert seen != list(range(COUNT))


def test_resume_with_other_workers_continues_exactly(files: list[str]) -> None:
    """Three workers for 40 steps, two for 60, then five to the end read the same as one."""
    pipeline = Pipeline.from_records(files, seed=7)
    whole = read_ids(pipeline.dataset(10, epochs=2))
    position, taken = 0, dict[int, int]()
    for workers, steps in ((3, 40), (2, 60), (5, None)):
        for shard in range(workers):
            batches = pipeline.batches(
                10, share=Share(workers, shard), start=position, epochs=2, drop_remainder=False
            )
            for step, (columns, first) in enumerate(batches):
                if step == steps:
                    break
                for index, number in enumerate(columns["id"]):
                    taken[first + index * workers] = int(number)
        position += workers * 10 * (steps or 0)
    assert taken == dict(enumerate(whole))


def test_same_seed_gives_the_same_order(files: list[str]) -> None:
    first = read_ids(Pipeline.from_records(files, seed=3).dataset(100, epochs=1))
    again = read_ids(Pipeline.from_records(files, seed=3).dataset(100, epochs=1, start=1000))
    assert first[1000:] == again
    assert first != read_ids(Pipeline.from_records(files, seed=4).dataset(100, epochs=1))


def test_each_iteration_has_its_own_order_and_seeds(files: list[str]) -> None:
    pipeline = Pipeline.from_records(files, seed=1).map(
        lambda batch, seed: {**batch, "seed": seed[None]}, seeded=True
    )
    dataset = pipeline.dataset(500, epochs=1)
    first, second = read_ids(dataset), read_ids(dataset)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second
    seeds = [tuple(batch["seed"][0].numpy()) for _ in range(2) for batch in dataset]
    assert len(set(seeds)) == 20


def test_without_epochs_batches_never_end_and_are_full(files: list[str]) -> None:
    dataset = Pipeline.from_records(files, seed=3).dataset(1024, share=Share(3, 1))
    assert dataset.element_spec["id"].shape == (1024,)
    sizes = [len(batch["id"]) for batch in dataset.take(12)]
    assert sizes == [1024] * 12


def test_without_seed_examples_stay_in_order(files: list[str]) -> None:
    assert read_ids(Pipeline.from_records(files).dataset(64, epochs=1)) == list(range(COUNT))


def test_seeded_functions_depend_on_the_position(
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


def test_empty_source_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DataError, match="no examples"):
        list(Pipeline.from_records(tmp_path / "a").batches(10, epochs=1))


@pytest.mark.parametrize(("options", "batches"), [({}, 3), ({"drop_remainder": True}, 2)])
def test_finite_dataset_knows_its_cardinality(options: dict[str, Any], batches: int) -> None:
    context = Context(num_shards=2, shard=1)
    pipeline = Pipeline.from_arrays({"x": np.arange(10)})
    dataset = pipeline.dataset(2, share=context, epochs=1, **options)
    assert int(dataset.cardinality()) == len(list(dataset)) == batches
