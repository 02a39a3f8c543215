"""Trains synchronously on parameter servers; the chief prints the bytes that it moves in a step."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.loop.session import Session

FIRST, LAST = 10, 30
_TCP_INFO_BYTES = 232
_COUNTS = struct.Struct("=120xQQ")
"""Where Linux has the bytes that were acknowledged, and those that were received."""


def make_model() -> Any:
    features = keras.Input((1000,))
    ids = keras.Input((50,), dtype="int64")
    vectors = keras.layers.Flatten()(phalanx.layers.Embedding(10_000, 32)(ids))
    frozen = keras.layers.Dense(1000, trainable=False)(features)
    hidden = keras.layers.Dense(1000)(frozen)
    model = keras.Model(
        [features, ids], keras.layers.Dense(1)(keras.layers.Concatenate()([hidden, vectors]))
    )
    model.compile("adam", "mse")
    return model


def make_data(context: phalanx.Context) -> Any:
    x = np.random.default_rng(0).normal(size=(100, 1000)).astype("float32")
    ids = np.random.default_rng(1).integers(0, 10_000, (100, 50))
    data = tf.data.Dataset.from_tensor_slices(((x, ids), x[:, :1]))
    return data.batch(context.batch_size).repeat()


def count_bytes() -> int:
    """Return how many bytes the TCP sockets of this process have sent and received."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6):
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                total += sum(_COUNTS.unpack_from(info))
    return total


class Measure(phalanx.hooks.Hook):
    def due(self, step: int) -> int | None:
        return next((due for due in (FIRST, LAST) if due > step), None)

    def after_step(self, session: Session) -> None:
        if session.step == FIRST:
            self.first = count_bytes()
        elif session.step == LAST:
            weights = sum(v.numpy().nbytes for v in session.model.trainable_variables)
            moved = (count_bytes() - self.first) / (LAST - FIRST)
            print(f"MOVED {moved:.0f} OF {weights}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    config = phalanx.RunConfig.from_flags(parser.parse_args(), chief_trains=False)
    experiment = phalanx.Experiment(model=make_model, train_data=make_data)
    phalanx.run(experiment, config, hooks=[Measure()])


if __name__ == "__main__":
    main()
