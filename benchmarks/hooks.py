"""The overhead of ten idle hooks on a step of a tiny model.

python benchmarks/hooks.py

One run alternates between blocks of steps with ten hooks and blocks without them. The figure is the
CPU time that the hooks add. It is measured with the default settings, and with one step per call,
where the session calls each hook before and after every step.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx import hooks

ROUNDS = 10
NEVER = 10**9


class Tiny(phalanx.Experiment):
    def model(self) -> Any:
        model = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(16), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.001), "mse")
        return model

    def train_data(self, context: phalanx.Context) -> Any:
        x = np.ones((64, 16), "float32")
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(32)
        return data.cache().repeat()


class Alternate(hooks.Hook):
    """Installs and removes the ten hooks in turn, and measures each block of steps."""

    def __init__(self, block: int, ten: list[hooks.Hook]) -> None:
        self.block = block
        self.ten = ten
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self._with = False
        self._started = 0.0
        self._always: list[hooks.Hook] = []
        self._every = hooks.Every(steps=block)

    def begin(self, session: Any) -> None:
        self._always = [h for h in session._hooks if isinstance(h, hooks.StopAtStepHook)]
        for hook in self.ten:
            hook.begin(session)
        self._switch(session)

    def due(self, step: int) -> int | None:
        return self._every.next_step(step)

    def after_step(self, session: Any) -> None:
        if self._every.is_due(session.step, session.now):
            # Skip the first blocks: the number of steps per call is not tuned yet.
            if session.step > 2 * self.block:
                self.seconds[self._with].append(time.process_time() - self._started)
            self._switch(session)

    def _switch(self, session: Any) -> None:
        self._with = not self._with
        session._hooks = [*self._always, *(self.ten if self._with else []), self]
        self._started = time.process_time()


def ten_hooks() -> list[hooks.Hook]:
    never = [hooks.Every(steps=NEVER) for _ in range(6)]
    return [
        hooks.BestExporterHook(),
        hooks.StopAtTimeHook(NEVER),
        hooks.NanHook(),
        hooks.ExamplesPerSecondHook(never[0]),
        hooks.LoggingHook(never[1]),
        hooks.SummaryHook(never[2]),
        hooks.CheckpointHook(never[3]),
        hooks.EvaluationHook(never[4]),
        hooks.EarlyStoppingHook(),
        hooks.ActionHook(never[5], print),
    ]


def measure(block: int, steps_per_call: int | None) -> float:
    """Return the CPU time that the hooks add, in per cent."""
    alternate = Alternate(block, ten_hooks())
    with tempfile.TemporaryDirectory() as folder:
        config = phalanx.RunConfig(
            model_dir=folder, train_steps=(2 * ROUNDS + 2) * block, log_steps=None,
            summary_steps=None, save_seconds=None, steps_per_call=steps_per_call,
        )  # fmt: skip
        phalanx.run(Tiny(), config, hooks=[alternate])
    pairs = zip(alternate.seconds[True], alternate.seconds[False], strict=False)
    return (statistics.median(hooked / bare for hooked, bare in pairs) - 1) * 100


def main() -> None:
    assert len(ten_hooks()) == 10
    print("one step per call", file=sys.stderr)
    single = measure(300, 1)
    print("default settings", file=sys.stderr)
    default = measure(5_000, None)
    print(f"with one step per call: {single:.2f} %")
    print(f"RESULT ten_idle_hooks_overhead {default:.2f} % goal <= 2")


if __name__ == "__main__":
    main()
