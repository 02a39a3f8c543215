"""Tables: rows that are created where they are trained, and the same wherever that is."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import ROWS, WIDTH, make_step

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.variables import row_initializer, row_transfer
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.row_transfer import split_rows
from phalanx.train.variables.table import Table

CPU = "/device:CPU:0"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a table of a few rows a large one, of many blocks."""
    monkeypatch.setattr(row_transfer, "CHUNK_BYTES", 7 * WIDTH * 4)
    monkeypatch.setattr(row_initializer, "_BLOCK_BYTES", 4 * WIDTH * 4)


def make_table(initializer: Any = None) -> Table:
    initializer = initializer or keras.initializers.RandomNormal(seed=3)
    return Table((ROWS, WIDTH), initializer, "float32", "rows")


def split(sizes: list[int]) -> list[Any]:
    return [tf.Variable(tf.zeros([size, WIDTH])) for size in sizes]


def join(shards: Any) -> Any:
    """Return the rows of shards in the order of the table."""
    return np.concatenate([row_transfer.read_range(rows) for rows in split_rows(shards)])


def test_table_of_one_block_has_the_values_of_keras() -> None:
    for name in ("uniform", "glorot_uniform", "he_normal", "lecun_uniform", "zeros", "ones"):
        initializer = keras.initializers.get(name)
        wanted = initializer((ROWS, WIDTH), dtype="float32")
        np.testing.assert_allclose(make_table(initializer).numpy(), wanted, rtol=1e-6, err_msg=name)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("sizes", [[50], [25, 25], [16, 17, 17], [1, 2, 47]])
def test_initial_rows_do_not_depend_on_the_number_of_shards(sizes: list[int]) -> None:
    wanted = make_table().numpy()
    table, shards = make_table(), split(sizes)
    table.attach(shards)
    table.push()
    np.testing.assert_array_equal(join(shards), wanted)
    blocks = wanted.reshape(-1)[: 48 * WIDTH].reshape(12, -1)
    assert len(np.unique(blocks, axis=0)) == 12


def test_initializer_that_needs_the_whole_table_works_too() -> None:
    table, shards = make_table(keras.initializers.Orthogonal(seed=1)), split([30, 20])
    table.attach(shards)
    table.push()
    wanted = keras.initializers.Orthogonal(seed=1)((ROWS, WIDTH))
    np.testing.assert_array_equal(join(shards), wanted)


@pytest.mark.usefixtures("small_pieces")
def test_host_has_a_large_table_only_if_it_is_read() -> None:
    _step, host_variables = make_step("adam")
    weights = DeviceVariables.place(host_variables, [CPU] * 2, Clipping())
    weights.push()
    weights.pull()
    tables = host_variables.described()
    assert len(tables) == 6
    assert all(table._local is None for table in tables)
    value = tables[0].numpy()
    np.testing.assert_array_equal(value, join(tables[0].shards))


@pytest.mark.usefixtures("small_pieces")
def test_assigned_rows_reach_the_shards_and_come_back() -> None:
    table, shards = make_table(), split([20, 30])
    table.attach(shards)
    values = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
    table.assign(values)
    table.push()
    np.testing.assert_array_equal(join(shards), values)
    shards[1].assign(shards[1] + 1)
    table.pull()
    np.testing.assert_array_equal(table.numpy(), join(shards))
    assert np.abs(table.numpy() - values).max(axis=1).round().sum() == 30


def test_one_process_has_one_copy_of_a_table() -> None:
    _step, host_variables = make_step("adam")
    weights = DeviceVariables.place(host_variables, [CPU], Clipping())
    weights.push()
    buffers = {id(buffer) for buffer in weights.read()}
    tables = [variable for variable in host_variables.trainable if isinstance(variable, Table)]
    assert all(id(table.value) in buffers for table in tables)


def test_values_survive_another_placement() -> None:
    _step, host_variables = make_step("adam")
    wanted = [variable.numpy() for variable in host_variables.trainable]
    for stores in (1, 2, 3, 1):
        DeviceVariables.place(host_variables, [CPU] * stores, Clipping()).push()
        for variable, value in zip(host_variables.trainable, wanted, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)


def test_building_and_tracing_a_model_allocates_no_table() -> None:
    rows = 2**40
    user = keras.Input((), dtype="int64")
    model = keras.Model(user, keras.layers.Dense(1)(phalanx.layers.Embedding(rows, 8)(user)))
    model.compile(keras.optimizers.AdamW(0.1), "mse")
    model.optimizer.exclude_from_weight_decay(var_names=["bias"])
    from phalanx.train.step.step_function import StepFunction

    step = StepFunction(phalanx.Experiment(model=lambda: model), phalanx.Context(batch_size=2))
    step.build((tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 1], tf.float32)))
    tables = step.make_host_variables().described()
    assert [table.shape[0] for table in tables] == [rows] * 3
    assert all(table._local is None for table in tables)


def test_released_table_says_where_its_rows_are() -> None:
    table = make_table()
    table.attach(split([20, 30]))
    table.release("read the checkpoint")
    with pytest.raises(ConfigurationError, match=r"rows .* is not on this host: read the check"):
        table.numpy()


@pytest.mark.usefixtures("small_pieces")
def test_values_that_are_not_finite_are_found_without_a_host_copy() -> None:
    table, shards = make_table(), split([20, 30])
    table.attach(shards)
    table.push()
    assert table.is_finite()
    shards[1].assign(tf.where(tf.range(30)[:, None] == 29, np.nan, shards[1]))
    assert not table.is_finite()
    assert table._local is None
