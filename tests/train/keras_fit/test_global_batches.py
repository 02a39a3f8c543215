"""Tasks share the batches of a dataset without losing or repeating an example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.context import Context
from phalanx.train.keras_fit.experiment import FitExperiment
from phalanx.train.keras_fit.global_batches import GlobalBatches, check_is_batched
from phalanx.train.runtime.topology import Strategy


def contexts(shards: int, local: int = 1) -> list[Context]:
    return [
        Context(num_shards=shards, shard=shard, num_replicas=shards * local)
        for shard in range(shards)
    ]


def rows(dataset: Any) -> list[list[int]]:
    return [[int(value) for value in batch] for batch in dataset]


def shuffled() -> Any:
    return tf.data.Dataset.range(22).shuffle(22).batch(5)


def test_slices_make_up_each_batch() -> None:
    dataset = tf.data.Dataset.range(10).batch(4)
    first, second = (rows(GlobalBatches(dataset, 1).slice(c)) for c in contexts(2))
    assert first == [[0, 1], [4, 5], [8]]
    assert second == [[2, 3], [6, 7], [9]]


def test_each_device_gets_a_slice_of_its_own() -> None:
    dataset = tf.data.Dataset.range(8).batch(8)
    assert [rows(GlobalBatches(dataset, 1).slice(c)) for c in contexts(2, local=2)] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
    ]


@pytest.mark.parametrize("method", ["slice", "deal"])
def test_tasks_agree_on_the_order_of_a_shuffle_without_seed(method: str) -> None:
    tf.random.set_seed(None)
    shares = [getattr(GlobalBatches(shuffled(), seed=3), method)(c) for c in contexts(3)]
    epochs = []
    for _ in range(2):
        epoch = [rows(share) for share in shares]
        assert sorted(v for share in epoch for batch in share for v in batch) == list(range(22))
        epochs.append(epoch)
    assert epochs[0] != epochs[1]


def test_batches_are_dealt_in_turn() -> None:
    dataset = tf.data.Dataset.range(10).batch(3)
    first, second = (rows(GlobalBatches(dataset, 1).deal(c)) for c in contexts(2))
    assert first == [[0, 1, 2], [6, 7, 8]]
    assert second == [[3, 4, 5], [9]]


@pytest.mark.parametrize(
    ("strategy", "calls_python", "compares"),
    [
        (Strategy.ONE_PROCESS, True, False),
        (Strategy.ALL_REDUCE, False, True),
        (Strategy.SYNC_PS, False, False),
        (Strategy.SYNC_PS, True, True),
        (Strategy.ASYNC_PS, True, True),
    ],
)
def test_tasks_compare_the_order_of_data_that_several_of_them_make(
    strategy: Strategy, calls_python: bool, compares: bool
) -> None:
    dataset = tf.data.Dataset.range(22).shuffle(22, seed=5).batch(4)
    if calls_python:
        dataset = dataset.map(lambda x: tf.numpy_function(np.negative, [x], tf.int64))
    model = keras.Sequential([keras.layers.Dense(1)])
    experiment = FitExperiment(model, GlobalBatches(dataset, 1))
    assert (experiment.order(strategy) != "") == compares


def test_a_dataset_can_be_opened_inside_a_function() -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2], tf.int64)), 0
    )
    words = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "a"]).map(table.lookup).batch(2)
    batches = GlobalBatches(words, 1)
    assert batches.is_portable

    @tf.function  # type: ignore[untyped-decorator]
    def make() -> Any:
        return tf.data.experimental.to_variant(batches.slice(contexts(2)[0]))

    opened = tf.data.experimental.from_variant(make(), words.element_spec)
    assert rows(opened) == [[1], [0]]


def write_files(folder: Path, count: int) -> list[str]:
    paths = []
    for number in range(count):
        paths.append(str(folder / f"{number}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for row in range(6):
                writer.write(str(number * 100 + row).encode())
    return paths


def read_files(paths: list[str]) -> Any:
    return tf.data.TFRecordDataset(paths).map(tf.strings.to_number).batch(4)


def test_each_task_reads_files_of_its_own(tmp_path: Path) -> None:
    data = read_files(write_files(tmp_path, 4))
    first, second = (rows(GlobalBatches(data, 1).slice(c)) for c in contexts(2))
    assert first[0] == [0, 1]
    assert {value // 100 for batch in first for value in batch} == {0, 2}
    assert {value // 100 for batch in second for value in batch} == {1, 3}


def test_few_files_are_shared_by_examples(tmp_path: Path) -> None:
    data = read_files(write_files(tmp_path, 2))
    shares = [rows(GlobalBatches(data, 1).slice(c)) for c in contexts(4)]
    assert [share[0] for share in shares] == [[0], [1], [2], [3]]


def test_too_few_files_for_the_policy_of_the_dataset(tmp_path: Path) -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    data = read_files(write_files(tmp_path, 2)).with_options(options)
    with pytest.raises(ConfigurationError, match="is FILE, but 4 tasks cannot share its files"):
        GlobalBatches(data, 1).slice(contexts(4)[0])


def test_sparse_and_ragged_batches_are_sliced() -> None:
    sparse = tf.sparse.from_dense(np.eye(4, dtype="float32"))
    ragged = tf.ragged.constant([[1], [2, 3], [], [4]])
    dataset = tf.data.Dataset.from_tensors({"sparse": sparse, "ragged": ragged})
    [batch] = GlobalBatches(dataset, 1).slice(contexts(2)[1])
    assert tf.sparse.to_dense(batch["sparse"]).numpy().tolist() == np.eye(4)[2:].tolist()
    assert batch["ragged"].to_list() == [[], [4]]


def test_a_dataset_without_batches_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no batch dimension .* call \.batch"):
        check_is_batched(tf.data.Dataset.range(3).element_spec, "x")


def test_files_of_a_dataset_with_an_asserted_length_are_shared_by_examples(tmp_path: Path) -> None:
    data = read_files(write_files(tmp_path, 4)).apply(tf.data.experimental.assert_cardinality(6))
    first, second = (rows(GlobalBatches(data, 1).slice(c)) for c in contexts(2))
    assert len(first) == len(second) == 6
    assert sum(len(batch) for batch in first + second) == 24
