"""Large variables: dense ones that the host describes, trained and saved where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.train.model_dir.table_changes import read_tensor
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables import row_initializer, row_transfer
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.described_variable import DescribedVariable
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.large_variable import LargeVariable, describe_large_variables
from phalanx.train.variables.row_initializer import RowInitializer

CPU = "/device:CPU:0"
INPUTS, UNITS = 12, 16
OPTIMIZERS = keras.optimizers


@pytest.fixture
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the kernel of the hidden layer a large variable."""
    monkeypatch.setattr(row_transfer, "CHUNK_BYTES", 5 * UNITS * 4)


class Tower(keras.Model):  # type: ignore[misc]
    """A model whose layers create their weights when they are first called."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(UNITS, "tanh", kernel_initializer=make_initializer())
        self.score = keras.layers.Dense(1, kernel_initializer=make_initializer())

    def call(self, x: Any) -> Any:
        return self.score(self.hidden(x))


class OwnStep(Tower):
    """A model that takes the gradients itself."""

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def make_initializer() -> Any:
    return keras.initializers.GlorotUniform(seed=3)


def make_model(optimizer: Any = "adam", **options: Any) -> Any:
    keras.utils.set_random_seed(4)
    x = keras.Input((INPUTS,))
    hidden = keras.layers.Dense(UNITS, "tanh", kernel_initializer=make_initializer(), **options)
    model = keras.Model(x, keras.layers.Dense(1, kernel_initializer=make_initializer())(hidden(x)))
    model.compile(keras.optimizers.get(optimizer), "mse")
    return model


def make_compiled(kind: type[Tower]) -> Any:
    model = kind()
    model.compile("adam", "mse")
    return model


def make_data(context: phalanx.Context) -> Any:
    x = np.random.default_rng(0).normal(size=(60, INPUTS)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] * x[:, 1:2]))
    return data.shard(context.num_shards, context.shard).batch(context.batch_size)


def train(make: Any, directory: Path, steps: int = 6, **options: Any) -> dict[str, Any]:
    """Return all tensors of the last checkpoint, but the number of saves."""
    config = phalanx.RunConfig(
        model_dir=str(directory), global_batch_size=20, train_steps=steps, save_steps=2, **options
    )
    result = phalanx.run(phalanx.Experiment(model=make, train_data=make_data), config)
    names = tf.train.load_checkpoint(result.checkpoint).get_variable_to_shape_map()
    found = {n: read_tensor(result.checkpoint, n) for n in names if n.endswith("VARIABLE_VALUE")}
    del found["save_counter/.ATTRIBUTES/VARIABLE_VALUE"]
    return found


def make_variables(make: Any = make_model) -> Any:
    step = StepFunction(phalanx.Experiment(model=make), phalanx.Context(batch_size=20))
    step.build(make_data(phalanx.Context(batch_size=20)).element_spec)
    return step.make_host_variables()


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.usefixtures("small_messages")
@pytest.mark.parametrize("make", [make_model, lambda: make_compiled(Tower)], ids=["built", "later"])
@pytest.mark.parametrize("stores", [1, 3])
def test_host_allocates_no_large_weight_and_no_slot_of_it(make: Any, stores: int) -> None:
    host_variables = make_variables(make)
    placed = DeviceVariables.place(host_variables, [CPU] * stores, Clipping())
    placed.push()
    placed.pull()
    kernel, *slots = host_variables.described()
    assert kernel.path.endswith("kernel")
    assert isinstance(kernel, LargeVariable)
    assert len(slots) == 2
    is_local = [variable._local is not None for variable in (kernel, *slots)]
    # On one device, what is trained is the value of the variable.
    assert is_local == [stores == 1] * 3
    wanted = make_initializer()((INPUTS, UNITS))
    np.testing.assert_allclose(kernel.numpy(), wanted, rtol=1e-6)
    if stores == 1:
        assert id(kernel.value) in {id(weight.value) for weight in placed.stores[0].weights}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(make_model, {}, id="Adam"),
        pytest.param(lambda: make_model(OPTIMIZERS.SGD(0.1, 0.9, clipnorm=0.1)), {}, id="clipped"),
        pytest.param(lambda: make_model(OPTIMIZERS.AdamW(use_ema=True)), {}, id="EMA and decay"),
        pytest.param(lambda: make_model(OPTIMIZERS.Adafactor(0.1)), {}, id="Adafactor"),
        pytest.param(lambda: make_model(OPTIMIZERS.Lamb()), {}, id="Lamb"),
        pytest.param(lambda: make_model(kernel_constraint="max_norm"), {}, id="constraint"),
        pytest.param(lambda: make_model(kernel_regularizer="l2"), {"accumulate": 2}, id="parts"),
        pytest.param(lambda: make_compiled(Tower), {}, id="created in a call"),
        pytest.param(lambda: make_compiled(OwnStep), {}, id="own train_step"),
    ],
)
def test_large_variables_are_trained_and_saved_as_others(
    make: Any, options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = train(make, tmp_path / "wanted", **options)
    monkeypatch.setattr(row_transfer, "CHUNK_BYTES", 5 * UNITS * 4)
    assert_equal(train(make, tmp_path / "found", **options), wanted)


@pytest.mark.parametrize("begins_large", [True, False])
def test_run_continues_with_other_variables_described(
    begins_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = train(make_model, tmp_path / "wanted")
    sizes = [5 * UNITS * 4, row_transfer.CHUNK_BYTES]
    for steps, size in zip((4, 6), sizes if begins_large else sizes[::-1], strict=True):
        monkeypatch.setattr(row_transfer, "CHUNK_BYTES", size)
        found = train(make_model, tmp_path / "found", steps)
    assert_equal(found, wanted)


@pytest.mark.usefixtures("small_messages")
def test_incremental_checkpoints_have_large_variables_whole(tmp_path: Path) -> None:
    def make() -> Any:
        keras.utils.set_random_seed(4)
        x = keras.Input((INPUTS,))
        indices = keras.layers.Lambda(lambda x: tf.cast(tf.abs(x) * 3, tf.int64))(x)
        rows = phalanx.layers.Embedding(50, 3, num_oov_indices=1)(indices)
        hidden = keras.layers.Dense(UNITS)(x)
        both = keras.layers.Concatenate()([hidden, keras.layers.Flatten()(rows)])
        model = keras.Model(x, keras.layers.Dense(1)(both))
        model.compile("adam", "mse")
        return model

    wanted = train(make, tmp_path / "wanted", seed=1)
    train(make, tmp_path / "found", steps=4, seed=1, full_save_every=10)
    changed = tf.train.load_checkpoint(str(tmp_path / "found/model.ckpt-4"))
    assert changed.has_tensor("_PHALANX_BASE")
    assert_equal(train(make, tmp_path / "found", seed=1), wanted)


@pytest.mark.usefixtures("small_messages")
def test_weights_that_the_program_assigns_are_trained(tmp_path: Path) -> None:
    def make() -> Any:
        model = make_model(OPTIMIZERS.SGD(0.0))
        model.layers[1].kernel.assign(np.ones((INPUTS, UNITS)))
        return model

    found = train(make, tmp_path, 2)
    (kernel,) = [value for value in found.values() if value.shape == (INPUTS, UNITS)]
    np.testing.assert_array_equal(kernel, np.ones((INPUTS, UNITS)))


@pytest.mark.usefixtures("small_messages")
def test_half_precision_reads_large_weights_in_half_precision(tmp_path: Path) -> None:
    policy = keras.mixed_precision.global_policy()
    try:
        found = train(make_model, tmp_path, 2, mixed_precision="bfloat16")
    finally:
        keras.mixed_precision.set_global_policy(policy)
    kernels = [value for value in found.values() if value.shape == (INPUTS, UNITS)]
    assert [kernel.dtype for kernel in kernels] == [np.dtype("float32")] * 3


@pytest.mark.usefixtures("small_messages")
def test_other_variables_keep_the_class_of_keras() -> None:
    with describe_large_variables():
        variables = make_model().weights
        # One row is larger than a message.
        wide = keras.Variable("zeros", shape=(2, 6 * UNITS))
    assert [isinstance(v, DescribedVariable) for v in (*variables, wide)] == [True] + [False] * 4
    assert not isinstance(make_model().weights[0], DescribedVariable)


@pytest.mark.parametrize("name", ["he_normal", "glorot_uniform", "lecun_uniform"])
@pytest.mark.parametrize("shape", [(6,), (3, 2, 4, 6), (2, 5, 4)])
def test_initial_values_have_the_scale_of_keras_in_any_shape(name: str, shape: Any) -> None:
    initializer = keras.initializers.get({"class_name": name, "config": {"seed": 5}})
    made = RowInitializer.make(initializer, shape, "float32")
    assert made is not None
    assert made.block_rows >= shape[0], row_initializer._BLOCK_BYTES
    wanted = initializer(shape, dtype="float32")
    np.testing.assert_allclose(made.make_rows(0, shape[0]), wanted, rtol=1e-6)
