"""Sparse tables, of which a step reads and updates only the rows it looks up."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train import sparse_model
from tests.train.sparse_model import ROWS, make_data, make_model, make_step

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.setting_checks import check_fits_ps
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.flat_layout import _split_evenly
from phalanx.train.variables.row_spread import spread_rows
from phalanx.train.variables.sparse_tables import Lookups
from phalanx.train.variables.table import Table


def train(
    tmp_path: Path, model: Any, steps: int = 6, data: Any = make_data, **settings: Any
) -> Any:
    config = phalanx.RunConfig(
        model_dir=str(tmp_path), train_steps=steps, global_batch_size=20, **settings
    )
    return phalanx.run(phalanx.Experiment(model=model, train_data=data, eval_data=data), config)


SLOW = pytest.mark.slow


class DenseEmbedding(keras.layers.Embedding):  # type: ignore[misc]
    """Multiplies by its weights: the gradient of a row is the sum of its lookups."""

    def call(self, inputs: Any) -> Any:
        return keras.ops.one_hot(inputs, self.input_dim) @ self.embeddings


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"accumulate": 2}, marks=SLOW),
        pytest.param({"clip_norm": 0.05}, marks=SLOW),
        pytest.param({"xla": True}, marks=SLOW),
    ],
)
def test_sgd_trains_what_a_keras_embedding_does(tmp_path: Path, settings: Any) -> None:
    def model(layer: Any) -> Any:
        return lambda: make_model(keras.optimizers.SGD(0.5), layer)

    ours = train(tmp_path / "ours", model(phalanx.layers.Embedding), **settings)
    theirs = train(tmp_path / "theirs", model(keras.layers.Embedding), **settings)
    for found, wanted in zip(ours.model.get_weights(), theirs.model.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(0.05),
        pytest.param(lambda: keras.optimizers.Adagrad(0.05), marks=SLOW),
        pytest.param(lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1), marks=SLOW),
        pytest.param(
            lambda: keras.optimizers.Nadam(keras.optimizers.schedules.CosineDecay(0.05, 10)),
            marks=SLOW,
        ),
        pytest.param(lambda: keras.optimizers.Lamb(0.05), marks=SLOW),
        pytest.param(
            lambda: keras.optimizers.AdamW(0.05, use_ema=True, gradient_accumulation_steps=2),
            marks=SLOW,
        ),
        pytest.param(
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)), marks=SLOW
        ),
    ],
    ids=["adam", "adagrad", "adamw", "nadam", "lamb", "averages", "loss scale"],
)
def test_row_updates_equal_dense_updates_if_all_rows_are_looked_up(
    tmp_path: Path, optimizer: Any
) -> None:
    def every_row(context: phalanx.Context) -> Any:
        indices = np.tile(np.arange(ROWS), 3)
        y = np.random.default_rng(0).normal(size=(150, 1)).astype("float32")
        return tf.data.Dataset.from_tensor_slices(((indices, indices), y)).batch(ROWS)

    def model(layer: Any) -> Any:
        return lambda: make_model(optimizer(), layer)

    ours = train(tmp_path / "ours", model(phalanx.layers.Embedding), data=every_row)
    theirs = train(tmp_path / "theirs", model(DenseEmbedding), data=every_row)
    for found, wanted in zip(ours.model.get_weights(), theirs.model.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_rows_that_are_not_looked_up_do_not_change(tmp_path: Path) -> None:
    def adam() -> Any:
        return make_model(keras.optimizers.AdamW(0.05, weight_decay=0.1))

    result = train(tmp_path, adam, data=lambda context: make_data(context, rows=ROWS // 2))
    before = adam().get_layer("users").embeddings.numpy()
    after = result.model.get_layer("users").embeddings.numpy()
    np.testing.assert_array_equal(after[ROWS // 2 :], before[ROWS // 2 :])
    assert np.abs(after[: ROWS // 2] - before[: ROWS // 2]).min() > 0


def test_iterations_advance_in_a_model_of_tables_only(tmp_path: Path) -> None:
    def model() -> Any:
        index = keras.Input((), dtype="int64")
        model = keras.Model(index, phalanx.layers.Embedding(ROWS, 1)(index))
        model.compile("adam", "mse")
        return model

    def data(context: phalanx.Context) -> Any:
        return make_data(context).map(lambda x, y: (x[0], y))

    assert int(train(tmp_path, model, data=data).model.optimizer.iterations) == 6


@pytest.mark.parametrize("stores", [pytest.param(1, marks=SLOW), 3])
def test_table_is_split_by_rows_and_pulled_back(stores: int) -> None:
    step, host_variables = make_step("adam")
    weights = DeviceVariables.place(host_variables, ["/device:CPU:0"] * stores, Clipping(norm=0.1))
    wanted = [variable.numpy() for variable in host_variables.trainable]
    weights.push()
    rows = [weights.layout.buffers[index].shape[0] for index in weights.sparse_buffers()]
    assert rows == {1: [50, 50], 3: [16, 17, 17] * 2}[stores]

    @tf.function  # type: ignore[untyped-decorator]
    def update(batch: Any) -> Any:
        buffers, state = weights.read(), weights.read_state()
        gradients, _, report, _ = step.train(weights, buffers, state, batch, 0, 0)
        weights.apply(gradients)
        return report

    for batch in make_data(phalanx.Context(batch_size=20)).take(2):
        update(batch)
    weights.pull()
    after_two = [variable.numpy() for variable in host_variables.trainable]
    assert all(np.abs(a - b).max() > 0 for a, b in zip(after_two, wanted, strict=True))
    others = DeviceVariables.place(host_variables, ["/device:CPU:0"] * 2, Clipping())
    others.push()
    for variable in host_variables.trainable:
        variable.assign(tf.zeros_like(variable.value))
    others.pull()
    for variable, value in zip(host_variables.trainable, after_two, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_settings_that_parameter_servers_cannot_train_are_rejected() -> None:
    step, host_variables = make_step(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ConfigurationError, match=r"float16.*use bfloat16"):
        check_fits_ps(phalanx.RunConfig(), step, host_variables)
    step, host_variables = make_step("sgd")
    with pytest.raises(ConfigurationError, match="xla is set, but the model looks up rows"):
        check_fits_ps(phalanx.RunConfig(xla=True), step, host_variables)


@pytest.mark.parametrize("shift", [20, -20])
def test_index_out_of_range_is_an_error(shift: int, tmp_path: Path) -> None:
    def data(context: phalanx.Context) -> Any:
        return make_data(context).map(lambda x, y: ((x[0] + shift, x[1]), y))

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"users/embeddings has the rows 0 to 49"
    ):
        train(tmp_path, lambda: make_model("sgd"), data=data)


def test_table_may_have_fewer_rows_than_there_are_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_model, "ROWS", 2)
    monkeypatch.setattr(sparse_model, "make_data", partial(make_data, rows=2))
    wanted = sparse_model.train_once(Clipping(), stores=1)
    for found, value in zip(sparse_model.train_once(Clipping(), stores=3), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows", [1, 2, 50, 1001])
def test_lookup_finds_the_rows_of_every_index_in_any_number_of_shards(rows: int) -> None:
    values = np.random.default_rng(0).normal(size=(rows, 3)).astype("float32")
    indices = np.random.default_rng(1).integers(0, rows, 200)
    for shards in (1, 2, 3, 7):
        table = Table((rows, 3), "zeros", "float32", "rows")
        sizes = [size for _, size in _split_evenly(rows, shards)]
        buffers = [tf.Variable(tf.zeros([size, 3])) for size in sizes]
        table.attach(buffers)
        table.assign(values)
        table.push()
        lookups = Lookups({id(table): list(enumerate(buffers))}, is_remote=True)
        np.testing.assert_array_equal(lookups.look_up(table, indices), values[indices])


@pytest.mark.parametrize("shards", [2, 4, 16])
def test_frequent_rows_are_spread_over_all_shards(shards: int) -> None:
    rows = 1_000_000
    spans = spread_rows(tuple(size for _, size in _split_evenly(rows, shards)))
    starts = np.array([span.start for span in spans])
    owners = np.array([span.shard for span in spans])
    frequent = np.random.default_rng(0).zipf(1.2, 200_000)
    frequent = np.unique(frequent[frequent < rows])
    for looked_up in (frequent, rows - 1 - frequent):
        owner = owners[np.searchsorted(starts, looked_up, side="right") - 1]
        counts = np.bincount(owner, minlength=shards)
        assert counts.max() < 1.1 * counts.mean()
    assert len(spans) < 200 * shards
