"""Prints the sizes of the graphs that a worker gets, for a number of workers.

Starts a server of TensorFlow for each other task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.train.loop.session import Session
from phalanx.train.runtime.ps_cluster import WorkerDatasets

SERVERS = 1


def make_model() -> Any:
    ids = keras.Input((3,), dtype="int64")
    vectors = phalanx.layers.Embedding(40, 4)(ids)
    others = phalanx.layers.DynamicEmbedding(4, 64)(ids)
    flat = keras.layers.Flatten()(keras.layers.Concatenate()([vectors, others]))
    frozen = keras.layers.Dense(50, trainable=False)(flat)
    averages = keras.layers.BatchNormalization()(frozen)
    model = keras.Model(ids, keras.layers.Dense(1)(averages))
    model.compile("adam", "mse")
    return model


def make_data(context: phalanx.Context) -> Any:
    # Every shard has as many arrays of its own.
    ids = np.random.default_rng(context.shard).integers(0, 40, (200, 3))
    data = tf.data.Dataset.from_tensor_slices((ids, ids[:, :1].astype("float32")))
    return data.batch(context.batch_size)


def measure(function: Any) -> list[int]:
    """Return the number of operations of a graph and its functions, and its bytes."""
    graph = function.graph.as_graph_def()
    nodes = len(graph.node) + sum(len(each.node_def) for each in graph.library.function)
    return [nodes, graph.ByteSize()]


class Measure(phalanx.hooks.Hook):
    def due(self, step: int) -> int | None:
        return 2

    def after_step(self, session: Session) -> None:
        if session.step < 2:
            return
        session.evaluate()
        engine: Any = session._engine
        is_sync = hasattr(engine, "_work_as")
        step = engine._work_as[-1] if is_sync else engine._train_remote
        found: dict[str, Any] = {"step": measure(step), "data": measure(opened[-1])}
        if not is_sync:
            # A synchronous worker evaluates in the same graph, and fetches frozen weights for that.
            found["evaluation"] = measure(engine._evaluate_shards[-1])
            [frozen] = engine.variables.fixed_state()[:1]
            captured = [id(handle) for handle, _ in step.graph.captures]
            found["step fetches frozen weights"] = id(frozen.handle) in captured
        print(f"FOUND {json.dumps(found)}", flush=True)
        os._exit(0)


opened: list[Any] = []
running: list[Any] = []
"""Kept, so that their standard input ends with this process."""


def main(directory: str, workers: int, sync: bool) -> None:
    keep = WorkerDatasets.__init__

    def note_and_keep(self: WorkerDatasets, functions: Any) -> None:
        opened.extend(functions)
        keep(self, functions)

    WorkerDatasets.__init__ = note_and_keep  # type: ignore[method-assign]
    with hold_ports(1 + SERVERS + workers) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        servers, others = addresses[1 : 1 + SERVERS], addresses[1 + SERVERS :]
        cluster = {"chief": addresses[:1], "ps": servers, "worker": others}
    for job in ("ps", "worker"):
        for number in range(len(cluster[job])):
            command = [sys.executable, __file__, json.dumps(cluster), job, str(number)]
            running.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    )
    config = phalanx.RunConfig(
        model_dir=directory,
        train_steps=100,
        mode=phalanx.Mode.SYNC if sync else phalanx.Mode.ASYNC,
        global_batch_size=4 * workers,
        chief_trains=False,
        seed=1,
    )
    experiment = phalanx.Experiment(model=make_model, train_data=make_data, eval_data=make_data)
    phalanx.run(experiment, config, hooks=[Measure()])


def serve(cluster: dict[str, list[str]], job: str, number: int) -> None:
    """Serve until the standard input is closed."""
    server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job, number)
    sys.stdin.read()
    del server
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):
        serve(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["--sync"])
