"""The slots of optimizers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from phalanx.train.variables.host_variables import build_optimizer

OPTIMIZERS = keras.optimizers


def make_weights() -> list[Any]:
    """Weights whose names are prefixes of each other, or are equal."""
    names = [("kernel", (4, 5)), ("kernel", (4, 5)), ("kernel_momentum", (4, 5)), ("bias", (3,))]
    return [keras.Variable(np.ones(shape), dtype="float32", name=name) for name, shape in names]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: OPTIMIZERS.SGD(0.1), set()),
        (lambda: OPTIMIZERS.SGD(0.1, momentum=0.9), {"momentum"}),
        (lambda: OPTIMIZERS.Adam(use_ema=True), {"momentum", "velocity", "average"}),
        (lambda: OPTIMIZERS.Adam(amsgrad=True), {"momentum", "velocity", "velocity_hat"}),
        (OPTIMIZERS.AdamW, {"momentum", "velocity"}),
        (OPTIMIZERS.Adamax, {"momentum", "norm"}),
        (OPTIMIZERS.Nadam, {"momentum", "velocity"}),
        (OPTIMIZERS.Adagrad, {"accumulator"}),
        (OPTIMIZERS.Adadelta, {"accumulated_grad", "accumulated_delta_var"}),
        (
            lambda: OPTIMIZERS.RMSprop(centered=True, momentum=0.9),
            {"velocity", "momentum", "average_gradient"},
        ),
        (OPTIMIZERS.Ftrl, {"accumulator", "linear"}),
        (OPTIMIZERS.Lion, {"momentum"}),
        (OPTIMIZERS.Lamb, {"momentum", "velocity"}),
        (lambda: OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Adam()), {"momentum", "velocity"}),
    ],
)
def test_each_weight_has_each_slot(make: Any, names: set[str]) -> None:
    weights, optimizer = make_weights(), make()
    slots = build_optimizer(optimizer, weights)
    assert slots.by_name.keys() == names
    for by_weight in slots.by_name.values():
        assert [tuple(by_weight[i].shape) for i in range(4)] == [w.shape for w in weights]
    found = [slot for by_weight in slots.by_name.values() for slot in by_weight.values()]
    every = {id(variable) for variable in optimizer.variables}
    assert {id(variable) for variable in [*found, *slots.shared]} == every
    assert len(found) + len(slots.shared) == len(every)


def test_slots_of_weights_with_the_same_name_are_told_apart() -> None:
    weights = make_weights()
    optimizer = OPTIMIZERS.SGD(0.1, momentum=0.9)
    momentum = build_optimizer(optimizer, weights).by_name["momentum"]
    gradients = [np.full(weight.shape, number, "float32") for number, weight in enumerate(weights)]
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], weights)
    for number, gradient in enumerate(gradients):
        np.testing.assert_allclose(momentum[number].numpy(), -0.1 * gradient)


def test_weights_may_lack_a_slot() -> None:
    """Muon keeps a velocity only for weights that it trains as AdamW does."""
    weights = make_weights()
    slots = build_optimizer(OPTIMIZERS.Muon(), weights)
    assert slots.by_name["momentum"].keys() == {0, 1, 2, 3}
    assert slots.by_name["velocity"].keys() == {3}
