"""Tables of which a step reads and changes only the rows it looks up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.runner import check_fits_ps
from phalanx.train.step.accumulation import cut_batches
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.device_variables import DeviceVariables

ROWS, WIDTH = 50, 4


def make_model(optimizer: Any, layer: Any = phalanx.layers.Embedding) -> Any:
    keras.utils.set_random_seed(4)
    user, item = (keras.Input((), dtype="int64", name=name) for name in ("user", "item"))
    users, items = layer(ROWS, WIDTH, name="users"), layer(ROWS, WIDTH, name="items")
    joined = keras.layers.Concatenate()([users(user), users(item), items(item)])
    model = keras.Model([user, item], keras.layers.Dense(1)(joined))
    model.compile(optimizer, "mse")
    return model


def make_data(context: phalanx.Context, rows: int = ROWS) -> Any:
    random = np.random.default_rng(0)
    user, item = random.integers(0, rows, (2, 60))
    y = (user - item).astype("float32")[:, None] / ROWS
    data = tf.data.Dataset.from_tensor_slices(((user, item), y))
    return data.shard(context.num_shards, context.shard).batch(context.batch_size)


def train(
    tmp_path: Path, model: Any, steps: int = 6, data: Any = make_data, **settings: Any
) -> Any:
    config = phalanx.RunConfig(
        model_dir=str(tmp_path), train_steps=steps, global_batch_size=20, **settings
    )
    return phalanx.run(phalanx.Experiment(model=model, train_data=data, eval_data=data), config)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"accumulate": 2}, marks=SLOW),
        pytest.param({"clip_norm": 0.05}, marks=SLOW),
        pytest.param({"xla": True}, marks=SLOW),
    ],
)
def test_with_sgd_it_is_a_keras_embedding(tmp_path: Path, settings: Any) -> None:
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
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)), marks=SLOW
        ),
    ],
    ids=["adam", "adagrad", "adamw", "nadam", "lamb", "loss scale"],
)
def test_rows_are_updated_as_if_they_were_the_whole(tmp_path: Path, optimizer: Any) -> None:
    """Where every step looks up every row, there is no difference."""

    def every_row(context: phalanx.Context) -> Any:
        numbers = np.tile(np.arange(ROWS), 3)
        y = np.random.default_rng(0).normal(size=(150, 1)).astype("float32")
        return tf.data.Dataset.from_tensor_slices(((numbers, numbers), y)).batch(ROWS)

    def model(layer: Any) -> Any:
        return lambda: make_model(optimizer(), layer)

    ours = train(tmp_path / "ours", model(phalanx.layers.Embedding), data=every_row)
    theirs = train(tmp_path / "theirs", model(keras.layers.Embedding), data=every_row)
    for found, wanted in zip(ours.model.get_weights(), theirs.model.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_rows_that_no_batch_has_stay_as_they_are(tmp_path: Path) -> None:
    def adam() -> Any:
        return make_model(keras.optimizers.AdamW(0.05, weight_decay=0.1))

    result = train(tmp_path, adam, data=lambda context: make_data(context, rows=ROWS // 2))
    before = adam().get_layer("users").embeddings.numpy()
    after = result.model.get_layer("users").embeddings.numpy()
    np.testing.assert_array_equal(after[ROWS // 2 :], before[ROWS // 2 :])
    assert np.abs(after[: ROWS // 2] - before[: ROWS // 2]).min() > 0


def test_a_model_of_tables_alone_counts_its_updates(tmp_path: Path) -> None:
    def model() -> Any:
        number = keras.Input((), dtype="int64")
        model = keras.Model(number, phalanx.layers.Embedding(ROWS, 1)(number))
        model.compile("adam", "mse")
        return model

    def data(context: phalanx.Context) -> Any:
        return make_data(context).map(lambda x, y: (x[0], y))

    assert int(train(tmp_path, model, data=data).model.optimizer.iterations) == 6


@pytest.mark.parametrize("stores", [pytest.param(1, marks=SLOW), 3])
def test_a_table_is_spread_by_rows_and_comes_back(stores: int) -> None:
    step, host_variables = make_step("adam")
    weights = DeviceVariables.place(host_variables, ["/device:CPU:0"] * stores, {"norm": 0.1})
    wanted = [variable.numpy() for variable in host_variables.trainable]
    weights.push()
    rows = [weights.packing.pieces[number].shape[0] for number in weights.table_pieces()]
    assert rows == {1: [50, 50], 3: [16, 17, 17] * 2}[stores]

    @tf.function  # type: ignore[untyped-decorator]
    def update(batch: Any) -> Any:
        pieces, state = weights.read(), weights.read_state()
        gradients, _, report = step.train(weights, pieces, state, batch, 0, 0)
        weights.apply(gradients)
        return report

    for batch in make_data(phalanx.Context(batch_size=20)).take(2):
        update(batch)
    weights.pull()
    after_two = [variable.numpy() for variable in host_variables.trainable]
    assert all(np.abs(a - b).max() > 0 for a, b in zip(after_two, wanted, strict=True))
    one = DeviceVariables.place(host_variables, ["/device:CPU:0"], {})
    one.push()
    for variable in host_variables.trainable:
        variable.assign(tf.zeros_like(variable.value))
    one.pull()
    for variable, value in zip(host_variables.trainable, after_two, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def make_step(optimizer: Any) -> tuple[StepFunction, Any]:
    context = phalanx.Context(batch_size=20)
    step = StepFunction(phalanx.Experiment(model=lambda: make_model(optimizer)), context)
    step.build(make_data(context).element_spec)
    return step, step.make_host_variables()


def train_once(limits: Any, stores: int = 1, parts: int = 1, optimizer: Any = "adam") -> list[Any]:
    """The weights after two whole batches and a small one."""
    step, host_variables = make_step(optimizer)
    weights = DeviceVariables.place(host_variables, ["/device:CPU:0"] * stores, limits)
    weights.push()
    compute = cut_batches(step, parts)

    @tf.function  # type: ignore[untyped-decorator]
    def update(batch: Any) -> None:
        pieces, state = weights.read(), weights.read_state()
        weights.apply(compute(weights, pieces, state, batch, 0, 0)[0])

    # The last batch has two examples, fewer than there may be parts.
    for batch in make_data(phalanx.Context(batch_size=29)):
        update(batch)
    weights.pull()
    return [variable.numpy() for variable in host_variables.trainable]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"value": 0.01}, marks=SLOW),
        {"norm": 0.02},
        pytest.param({"global_norm": 0.03}, marks=SLOW),
    ],
)
def test_gradients_are_clipped_alike_however_weights_are_spread(limits: Any) -> None:
    wanted = train_once(limits, optimizer=keras.optimizers.SGD(1.0))
    found = train_once(limits, stores=3, optimizer=keras.optimizers.SGD(1.0))
    free = train_once({}, optimizer=keras.optimizers.SGD(1.0))
    for one, other, unclipped in zip(found, wanted, free, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        assert np.abs(one - unclipped).max() > 1e-4


@pytest.mark.parametrize("parts", [pytest.param(2, marks=SLOW), 5])
def test_a_batch_in_parts_gives_what_the_whole_gives(parts: int) -> None:
    for one, other in zip(train_once({}, 2, parts), train_once({}, 2), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_what_parameter_servers_cannot_train_is_refused() -> None:
    step, host_variables = make_step(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ConfigurationError, match=r"float16.*use bfloat16"):
        check_fits_ps(phalanx.RunConfig(), step, host_variables)
    step, host_variables = make_step("sgd")
    with pytest.raises(ConfigurationError, match="xla is set, but the model looks up rows"):
        check_fits_ps(phalanx.RunConfig(xla=True), step, host_variables)


def test_a_number_that_no_row_has(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        train(tmp_path, lambda: make_model("sgd"), data=lambda c: make_data(c, rows=ROWS + 20))
