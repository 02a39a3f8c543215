"""Trains tables on three servers of TensorFlow inside this process, and restores them on two.

The servers are those of parameter servers: every row passes through gRPC.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.train.model_dir.table_slices import SharedFiles, restore_checkpoint, write_checkpoint
from phalanx.train.step.accumulation import accumulate_parts
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables import row_transfer
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.train.sparse_model import ROWS, WIDTH, make_data, make_model

CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"
SERVERS = [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(3)]


def connect() -> list[Any]:
    """Start the servers, which end with this process."""
    with hold_ports(len(SERVERS) + 1) as ports:
        chief, *servers = (f"127.0.0.1:{port}" for port in ports)
        cluster = tf.train.ClusterSpec({"ps": servers, "chief": [chief]})
        started = [tf.distribute.Server(cluster, "ps", index) for index in range(len(servers))]
        tf.config.experimental_connect_to_cluster(cluster, job_name="chief", task_index=0)
    return started


class Placed:
    """A model whose variables are on some devices."""

    def __init__(self, devices: list[str], own: str | None) -> None:
        def layer(rows: int, width: int, name: str) -> Any:
            optimizer = own if name == "users" else None
            return phalanx.layers.Embedding(rows, width, name=name, optimizer=optimizer)

        context = phalanx.Context(batch_size=20)
        adam = keras.optimizers.Adam(0.05)
        self.step = StepFunction(phalanx.Experiment(model=lambda: make_model(adam, layer)), context)
        self.step.build(make_data(context).element_spec)
        self.host_variables = self.step.make_host_variables()
        self.variables = DeviceVariables.place(self.host_variables, devices, Clipping())
        self.variables.push()
        others = self.host_variables.own_optimizers().values()
        optimizers = [self.host_variables.optimizer, *others]
        self.checkpoint = tf.train.Checkpoint(
            model=self.step.model, **{f"optimizer_{i}": each for i, each in enumerate(optimizers)}
        )
        self.checkpoint.save_counter.assign_add(1)

    def train(self) -> None:
        compute, variables = accumulate_parts(self.step, 1), self.variables

        @tf.function  # type: ignore[untyped-decorator]
        def update(batch: Any) -> None:
            buffers, state = variables.read(), variables.read_state()
            variables.apply(compute(variables, buffers, state, batch, 0, 0)[0])

        for batch in make_data(phalanx.Context(batch_size=20)):
            update(batch)
        variables.pull()

    def compare(self, other: Placed) -> None:
        pairs = zip(self.host_variables.all(), other.host_variables.all(), strict=True)
        for found, wanted in pairs:
            np.testing.assert_allclose(
                found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-6, err_msg=found.path
            )


def main(prefix: str, own: str | None) -> None:
    servers = connect()
    row_transfer.CHUNK_BYTES = 7 * WIDTH * 4
    alone, trained = Placed([CHIEF], own), Placed(SERVERS, own)
    for placed in (alone, trained):
        placed.train()
    names = write_checkpoint(trained.checkpoint, prefix, SharedFiles(), lambda: None)
    reader = tf.train.load_checkpoint(prefix)
    assert {tuple(reader.get_tensor(name).shape) for name in names} == {(ROWS, WIDTH)}
    restored = Placed(SERVERS[:2], own)
    restore_checkpoint(restored.checkpoint, prefix)
    trained.compare(alone)
    restored.compare(alone)
    print(f"EQUAL {len(names)} tables and slots on {len(servers)} servers", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if sys.argv[2:] else None)
