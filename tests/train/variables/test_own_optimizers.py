"""Tables with an optimizer of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import make_data, make_model

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.step.accumulation import accumulate_parts
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.05, 10)),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02),
}


def own(make: Callable[[], Any], only: str | None = None) -> Callable[..., Any]:
    """Return a layer with an optimizer of its own, or only the one of this name."""

    def layer(rows: int, width: int, name: str) -> Any:
        optimizer = make() if only in (None, name) else None
        return phalanx.layers.Embedding(rows, width, name=name, optimizer=optimizer)

    return layer


def train(model: Callable[[], Any], stores: int = 1) -> Any:
    """Train three batches in so many stores; return the step and the host variables."""
    context = phalanx.Context(batch_size=29)
    step = StepFunction(phalanx.Experiment(model=model), context)
    step.build(make_data(context).element_spec)
    host_variables = step.make_host_variables()
    variables = DeviceVariables.place(host_variables, ["/device:CPU:0"] * stores, Clipping())
    variables.push()
    compute = accumulate_parts(step, 1)

    @tf.function  # type: ignore[untyped-decorator]
    def update(batch: Any) -> None:
        variables.apply(
            compute(variables, variables.read(), variables.read_state(), batch, 0, 0)[0]
        )

    for batch in make_data(context):
        update(batch)
    variables.pull()
    return host_variables


def read(host_variables: Any) -> list[Any]:
    return [np.asarray(variable.numpy()) for variable in host_variables.all()]


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("momentum", "adam") else pytest.param(n, marks=pytest.mark.slow)
        for n in OPTIMIZERS
    ],
)
def test_same_optimizer_for_tables_and_the_model_changes_nothing(name: str) -> None:
    make = OPTIMIZERS[name]
    wanted = train(lambda: make_model(make()))
    found = train(lambda: make_model(make(), own(make)), stores=3)
    for variable, other in zip(found.trainable, wanted.trainable, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)
    for each in found.own_optimizers().values():
        assert int(each.iterations) == 3


def test_only_the_table_with_the_optimizer_is_trained_by_it() -> None:
    def make() -> Any:
        return make_model(keras.optimizers.SGD(0.0), own(OPTIMIZERS["adagrad"], "users"))

    before = [variable.numpy() for variable in make().trainable_variables]
    found = train(make, stores=2)
    changed = {
        variable.path: bool(np.abs(variable.numpy() - old).max() > 0)
        for variable, old in zip(found.trainable, before, strict=True)
    }
    assert [path for path, has_changed in changed.items() if has_changed] == ["users/embeddings"]
    assert set(found.slots.by_name) == {"accumulator"}
    np.testing.assert_equal(read(train(make, stores=3))[0], found.trainable[0].numpy())


def test_model_of_tables_with_own_optimizers_only_counts_its_steps() -> None:
    def make() -> Any:
        user, item = (keras.Input((), dtype="int64") for _ in range(2))
        layer = phalanx.layers.Embedding(50, 1, optimizer="adagrad")
        model = keras.Model([user, item], layer(user) + layer(item))
        model.compile("adam", "mse")
        return model

    found = train(make, stores=2)
    assert int(found.optimizer.iterations) == 3
    assert [int(each.iterations) for each in found.own_optimizers().values()] == [3]


def test_slots_of_own_optimizers_are_saved_and_restored(tmp_path: Path) -> None:
    def run(folder: str, steps: int) -> Any:
        config = phalanx.RunConfig(
            model_dir=str(tmp_path / folder), train_steps=steps, global_batch_size=20, seed=3
        )
        experiment = phalanx.Experiment(
            model=lambda: make_model("adam", own(OPTIMIZERS["momentum"], "items")),
            train_data=make_data,
            eval_data=make_data,
        )
        return phalanx.run(experiment, config)

    whole = run("whole", 6)
    run("parts", 3)
    parts = run("parts", 6)
    for found, wanted in zip(parts.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    names = [name for name, _ in tf.train.list_variables(str(tmp_path / "parts/model.ckpt-6"))]
    assert sum(name.startswith("table_optimizers/table_0") for name in names) == 3
    assert not any("optimizer" in name for name in names if name.startswith("model/"))


def test_layer_has_its_optimizer_after_a_copy() -> None:
    layer = phalanx.layers.Embedding(5, 2, optimizer=keras.optimizers.Ftrl(0.3))
    copy = phalanx.layers.Embedding.from_config(layer.get_config())
    copy.build()
    assert isinstance(copy.table.optimizer, keras.optimizers.Ftrl)
    assert float(copy.table.optimizer.learning_rate) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: "fast", "optimizer is 'fast', which is no optimizer of Keras"),
        (lambda: keras.optimizers.SGD(0.1, clipnorm=1.0), "has a limit for gradients"),
        (lambda: keras.optimizers.Lamb(0.1), "is Lamb, which does not update each element by"),
        (lambda: keras.optimizers.SGD(0.1, use_ema=True), "use_ema of the optimizer is True"),
    ],
)
def test_optimizers_that_rows_cannot_have_are_refused(
    optimizer: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(lambda: make_model("adam", own(optimizer)))


def test_loss_scale_and_own_optimizers_are_refused_together() -> None:
    main = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ConfigurationError, match="only one optimizer can scale the loss"):
        train(lambda: make_model(main, own(OPTIMIZERS["sgd"])))
