"""A small model with two sparse tables that several tests train."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.step.accumulation import accumulate_parts
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
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


def make_step(optimizer: Any) -> tuple[StepFunction, Any]:
    context = phalanx.Context(batch_size=20)
    step = StepFunction(phalanx.Experiment(model=lambda: make_model(optimizer)), context)
    step.build(make_data(context).element_spec)
    return step, step.make_host_variables()


def train_once(
    clipping: Clipping, stores: int = 1, parts: int = 1, optimizer: Any = "adam"
) -> list[Any]:
    """Return the weights after two full batches and a small one."""
    step, host_variables = make_step(optimizer)
    weights = DeviceVariables.place(host_variables, ["/device:CPU:0"] * stores, clipping)
    weights.push()
    compute = accumulate_parts(step, parts)

    @tf.function  # type: ignore[untyped-decorator]
    def update(batch: Any) -> None:
        buffers, state = weights.read(), weights.read_state()
        weights.apply(compute(weights, buffers, state, batch, 0, 0)[0])

    # The last batch has two examples, fewer than there may be parts.
    for batch in make_data(phalanx.Context(batch_size=29)):
        update(batch)
    weights.pull()
    return [variable.numpy() for variable in host_variables.trainable]
