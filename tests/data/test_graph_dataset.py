"""Pipelines as graphs have the same examples and types as in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

import pyarrow as pa  # noqa: E402

from phalanx.data import Pipeline, RecordSource, Share  # noqa: E402
from phalanx.data.graph_dataset import graph_dataset  # noqa: E402
from phalanx.errors import DataError  # noqa: E402
from phalanx.records import write_examples  # noqa: E402


def run_in_graph(make: Any) -> Any:
    """Make a dataset in a graph, as for the workers of parameter servers."""

    @tf.function  # type: ignore[untyped-decorator]
    def traced() -> Any:
        dataset = make()
        traced.spec = dataset.element_spec
        return tf.data.experimental.to_variant(dataset)

    variant = traced()
    return tf.data.experimental.from_variant(variant, traced.spec)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    for part in range(3):
        numbers = np.arange(part * 40, (part + 1) * 40)
        rows = [
            {"id": int(n), "pixels": bytes([n] * 4), "tags": [float(n)] * (n % 3)} for n in numbers
        ]
        write_examples(tmp_path / f"{part}.tfrecord", rows)
    return Pipeline.from_records(tmp_path / "*.tfrecord", seed=1, raw={"pixels": "uint8"})


def test_element_spec_equals_that_of_the_eager_dataset(pipeline: Pipeline) -> None:
    here = pipeline.dataset(8, epochs=1).element_spec
    assert run_in_graph(lambda: pipeline.dataset(8, epochs=1)).element_spec == here
    here = pipeline.dataset(8).element_spec
    assert run_in_graph(lambda: pipeline.dataset(8)).element_spec == here


def test_every_example_is_read_once_with_any_number_of_workers(pipeline: Pipeline) -> None:
    found = []
    for shard in range(3):
        share = Share(3, shard)
        for batch in run_in_graph(lambda share=share: pipeline.dataset(7, share=share, epochs=1)):
            np.testing.assert_array_equal(batch["pixels"][:, 0], batch["id"])
            assert [len(tags) for tags in batch["tags"]] == [n % 3 for n in batch["id"].numpy()]
            found += batch["id"].numpy().tolist()
    assert sorted(found) == list(range(120))
    assert found != sorted(found)


def test_each_batch_has_its_own_seed(pipeline: Pipeline) -> None:
    seeded = pipeline.map(lambda batch, seed: (batch["id"], seed), seeded=True)
    seeds = [tuple(seed.numpy()) for _, seed in run_in_graph(lambda: seeded.dataset(40, epochs=1))]
    assert len(set(seeds)) == 3


def test_workers_have_different_seeds_even_after_a_restart() -> None:
    arrays = Pipeline.from_arrays({"x": np.arange(16)}, seed=1)
    seeded = arrays.map(lambda batch, seed: seed, seeded=True)

    def positions(start: int, shard: int) -> list[int]:
        share = Share(2, shard)
        in_graph = run_in_graph(lambda: seeded.dataset(4, share=share, start=start, epochs=1))
        eager = seeded.dataset(4, share=share, start=start, epochs=1)
        assert [list(seed) for seed in in_graph] == [list(seed) for seed in eager]
        return [int(seed[1]) for seed in in_graph]

    assert positions(0, 0) + positions(0, 1) == [0, 8, 1, 9]
    assert positions(8, 0) + positions(8, 1) == [8, 9]


def test_default_of_a_ragged_feature_is_rejected(tmp_path: Path) -> None:
    write_examples(tmp_path / "a", [{"id": 1, "tags": [1, 2]}, {"id": 2}, {"id": 3, "tags": [3]}])
    tagged = Pipeline.from_records(tmp_path / "a", defaults={"tags": [7]})
    with pytest.raises(DataError, match="'tags' has any number of values"):
        run_in_graph(lambda: tagged.dataset(3, epochs=1))


def test_arrays_are_supported_and_tables_are_rejected() -> None:
    arrays = Pipeline.from_arrays({"x": np.arange(10)})
    batches = list(run_in_graph(lambda: arrays.dataset(4, epochs=1)))
    assert np.concatenate([batch["x"] for batch in batches]).tolist() == list(range(10))
    table = Pipeline.from_table(pa.table({"x": [1, 2]}))
    with pytest.raises(DataError, match="TableSource cannot be read in another process"):
        run_in_graph(lambda: table.dataset(2))


def test_schemes_unknown_to_tensorflow_are_rejected(pipeline: Pipeline) -> None:
    assert isinstance(pipeline.source, RecordSource)
    remote = Pipeline(replace(pipeline.source, files=("hdfs://host/a.tfrecord",)))
    with pytest.raises(DataError, match=r"knows no hdfs://\. Mount or copy"):
        graph_dataset(remote, 4, share=Share(), epochs=1, drop_remainder=False)
