"""Trains a model with frozen weights, averages, counters and flags; prints its state at the end."""

import argparse
import json
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.loop.session import Session

# The first integer whose successor is no float32.
START = 2**24
MEAN, DEVIATION = 3.0, 2.0


class Counters(keras.layers.Layer):  # type: ignore[misc]
    """Counts its calls, notes that it was called, and keeps a number of the last batch."""

    def build(self, input_shape: Any) -> None:
        def add(name: str, dtype: str, start: int) -> Any:
            return self.add_weight(
                shape=(), dtype=dtype, initializer=lambda shape, dtype: tf.cast(start, dtype),
                trainable=False, name=name,
            )  # fmt: skip

        self.calls = add("calls", "int64", START)
        self.called = add("called", "bool", 0)
        self.last = add("last", "int32", 0)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign(self.calls + 1)
            self.called.assign(True)
            self.last.assign(keras.ops.cast(1e4 * inputs[0, 0], "int32"))
        return inputs


class Stateful(phalanx.Experiment):
    def __init__(self, uneven: bool) -> None:
        self.uneven = uneven

    def model(self) -> Any:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                Counters(name="counters"),
                keras.layers.BatchNormalization(momentum=0.9, name="average"),
                keras.layers.Dense(100, trainable=False, name="frozen"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(1e-4), "mse")
        return model

    def train_data(self, context: phalanx.Context) -> tf.data.Dataset:
        random = np.random.default_rng(context.shard)
        x = random.normal(MEAN, DEVIATION, size=(960, 8)).astype("float32")
        # Batches of 5 examples: to multiply and divide by 5 rounds.
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        data = data.batch(5)
        return data.take(30 if context.shard else 2) if self.uneven else data


class PrintState(phalanx.hooks.Hook):
    """Print the frozen weights before and after, and the state of every copy of the model."""

    def begin(self, session: Session) -> None:
        self.before = read_frozen(session)

    def end(self, session: Session) -> None:
        session.pull()
        engine: Any = session._engine
        copies = getattr(engine, "_copies", [engine.variables])
        states = [[value.numpy().tolist() for value in copy.read_state()] for copy in copies]
        layer = session.model.get_layer("average")
        counters = session.model.get_layer("counters")
        result = {
            "step": session.step,
            "frozen is equal": self.before == read_frozen(session),
            "copies are equal": all(state == states[0] for state in states),
            "calls": int(counters.calls.numpy()) - START,
            "called": bool(counters.called.numpy()),
            "last": int(counters.last.numpy()),
            "mean": float(np.mean(layer.moving_mean.numpy())),
            "variance": float(np.mean(layer.moving_variance.numpy())),
        }
        print(f"STATE {json.dumps(result)}", flush=True)


def read_frozen(session: Session) -> list[bytes]:
    return [value.tobytes() for value in session.model.get_layer("frozen").get_weights()]


def main() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.add_argument("--devices-there", type=int, default=1)
    parser.add_argument("--uneven", action="store_true")
    arguments = parser.parse_args()
    if arguments.devices_there > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * arguments.devices_there
        tf.config.set_logical_device_configuration(cpu, logical)
    config = phalanx.RunConfig.from_flags(arguments, seed=1)
    phalanx.run(Stateful(arguments.uneven), config, hooks=[PrintState()])


if __name__ == "__main__":
    main()
