"""A small experiment, with ways to go wrong, for the tests with real processes."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.loop.session import Session

EXAMPLES = 91


class Toy(phalanx.Experiment):
    def __init__(
        self,
        fail_on: str | None = None,
        slow: float = 0.0,
        generates: bool = False,
        use_ema: bool = False,
        bad_batch: int | None = None,
    ) -> None:
        self._fail_on = fail_on
        self._slow = slow
        self._generates = generates
        self._use_ema = use_ema
        self._bad_batch = bad_batch

    def model(self) -> Any:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.BatchNormalization(trainable=False),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(0.01, use_ema=self._use_ema, ema_momentum=0.9)
        model.compile(optimizer, loss, metrics=["accuracy"])
        return model

    def train_data(self, context: phalanx.Context) -> tf.data.Dataset:
        data = make_data(EXAMPLES, context)
        if self._generates:
            data = generate(EXAMPLES, context)
        if self._bad_batch is not None:
            data = spoil(data, self._bad_batch, context)
        if self._slow:
            data = data.map(lambda x, y: (tf.py_function(self._wait, [x], tf.float32), y))
            data = data.map(lambda x, y: (tf.ensure_shape(x, [None, 8]), y))
        if self._fail_on:
            data = data.map(lambda x, y: (tf.py_function(self._raise, [x], tf.float32), y))
            data = data.map(lambda x, y: (tf.ensure_shape(x, [None, 8]), y))
        return data

    def eval_data(self, context: phalanx.Context) -> tf.data.Dataset:
        return make_data(101, context)

    def _wait(self, x: Any) -> Any:
        time.sleep(self._slow)
        return x

    def _raise(self, x: Any) -> Any:
        if self._fail_on == str(phalanx.detect().task):
            raise ZeroDivisionError("this is the user's own mistake")
        return x


def make_arrays(count: int) -> tuple[Any, Any]:
    x = np.random.RandomState(0).randn(count, 8).astype("float32")
    return x, x[:, :3].argmax(axis=1)


def make_data(count: int, context: phalanx.Context) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(make_arrays(count))
    return data.shard(context.num_shards, context.shard).batch(context.batch_size)


def spoil(data: tf.data.Dataset, number: int, context: phalanx.Context) -> tf.data.Dataset:
    """Repeat the data, and replace one batch of the second trainer by NaN."""
    if context.shard != 1:
        return data.repeat()
    numbered = data.repeat().enumerate()
    return numbered.map(lambda n, xy: (tf.where(n == number, np.nan * xy[0], xy[0]), xy[1]))


def generate(count: int, context: phalanx.Context) -> tf.data.Dataset:
    """The same examples, by Python in the process that reads them."""

    def read() -> Any:
        print(f"READING shard {context.shard} of {context.num_shards}", flush=True)
        yield from list(zip(*make_arrays(count), strict=True))[context.shard :: context.num_shards]

    signature = (tf.TensorSpec([8], tf.float32), tf.TensorSpec([], tf.int64))
    data = tf.data.Dataset.from_generator(read, output_signature=signature)
    return data.batch(context.batch_size)


class DumpAtBegin(phalanx.hooks.Hook):
    """Write down what came back from where the weights are trained, after a restore."""

    def __init__(self, path: str) -> None:
        self.path = path

    def begin(self, session: Session) -> None:
        for variable in session.model.variables:
            variable.assign(tf.zeros_like(variable.value))
        session.pull()
        np.savez(self.path, *session.model.get_weights())


class CountUpdates(phalanx.hooks.Hook):
    def end(self, session: Session) -> None:
        engine: Any = session._engine
        print(f"UPDATES {engine.count_updates()} STEP {session.step}", flush=True)


class HalveLearningRate(phalanx.hooks.Hook):
    def __init__(self, step: int) -> None:
        self.step = step

    def due(self, step: int) -> int | None:
        return self.step if step < self.step else None

    def after_step(self, session: Session) -> None:
        if session.step == self.step:
            session.learning_rate = session.learning_rate / 2


def main() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.add_argument("--dump-at-begin")
    parser.add_argument("--count-updates", action="store_true")
    parser.add_argument("--halve-learning-rate-at", type=int)
    parser.add_argument("--use-ema", action="store_true")
    parser.add_argument("--fail-on")
    parser.add_argument("--bad-batch", type=int)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--generates", action="store_true")
    parser.add_argument("--devices-there", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.devices_there > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * arguments.devices_there
        tf.config.set_logical_device_configuration(cpu, logical)
    hooks: list[phalanx.hooks.Hook] = []
    if arguments.dump_at_begin:
        hooks.append(DumpAtBegin(arguments.dump_at_begin))
    if arguments.count_updates:
        hooks.append(CountUpdates())
    if arguments.halve_learning_rate_at:
        hooks.append(HalveLearningRate(arguments.halve_learning_rate_at))
    toy = Toy(
        arguments.fail_on,
        arguments.slow,
        arguments.generates,
        arguments.use_ema,
        arguments.bad_batch,
    )
    config = phalanx.RunConfig.from_flags(arguments, seed=1)
    result = phalanx.run(toy, config, hooks=hooks)
    print(f"METRICS {result.metrics}", flush=True)
    print(f"RETURNED {Path(sys.argv[0]).name} {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
