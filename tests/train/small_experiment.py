"""A small experiment that several tests train."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx


def make_points(count: int = 64) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, (x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32"))


class Line(phalanx.Experiment):
    """Learns a plane; its two layers have names of their own."""

    def __init__(self, hidden: int = 3, rate: float = 0.05) -> None:
        self.hidden = hidden
        self.rate = rate

    def model(self, context: phalanx.Context) -> Any:
        model = keras.Sequential(
            [
                keras.Input((4,), name="x"),
                keras.layers.Dense(self.hidden, name="encoder"),
                keras.layers.Dense(1, name="head"),
            ]
        )
        model.compile(keras.optimizers.SGD(self.rate), "mse", metrics=["mae"])
        return model

    def train_data(self, context: phalanx.Context) -> Any:
        data = tf.data.Dataset.from_tensor_slices(make_points())
        return data.shard(context.num_shards, context.shard).batch(context.batch_size)

    eval_data = train_data


def train_line(
    config: phalanx.RunConfig, *hooks: phalanx.hooks.Hook, **settings: Any
) -> phalanx.Result:
    return phalanx.run(Line(), dataclasses.replace(config, **settings), hooks=hooks)
