"""What a job costs as its number of tasks grows: real TensorFlow tasks, with a tiny model.

The job has a chief, which does not train, one ps and otherwise workers, each with one thread, on
the cores of this machine. It runs asynchronously, then synchronously on the ps. As by `phalanx
run`, the tasks are forked from a process that has imported TensorFlow. The figures are the CPU
time of all tasks until the first step; the chief's CPU time for a step, its threads and its
memory; the size of the graph that a worker runs; the time to notice a killed worker, and the time
to end. Numbers of tasks for which there is too little memory are left out. `--plot FILE` draws
the curves.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from clusters import free_ports
from startup import measure_tree

from phalanx.launch.processes.forks import ForkedProcess, ForkServer

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SIZES = (4, 16, 64, 128)
# What a task takes at most, of the memory that is free at the start.
TASK_GIGABYTES = 0.6
WARM_UP, STEPS = 50, 300
WAIT_SECONDS = 600
MODES = {"async": [], "sync": ["--sync"]}
TITLES = {
    "cpu": "CPU s per task until the first step",
    "milliseconds": "CPU ms of the chief per step",
    "threads": "threads of the chief",
    "megabytes": "MB of the chief",
    "nodes": "nodes in the graph of a worker",
    "notice": "s to notice a killed worker",
    "end": "s to end",
}
# How many times larger a figure may be for the most tasks than for the fewest; None: as many times
# as there are more tasks.
GOALS = {
    "cpu": 2,
    "milliseconds": None,
    "threads": None,
    "megabytes": None,
    "nodes": 1,
    "notice": None,
    "end": None,
}


def train() -> None:
    """Run one task; the chief prints its measurements as JSON lines."""
    import keras
    import tensorflow as tf

    import phalanx

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def make_model() -> Any:
        layers = [keras.layers.Dense(16, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    def make_data(context: Any) -> Any:
        x = tf.random.stateless_normal([context.batch_size * 20, 16], seed=[1, 2])
        data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True)))
        return data.batch(context.batch_size, drop_remainder=True)

    class Measure(phalanx.hooks.Hook):
        """Prints what the chief costs; the run then goes on until a worker is killed."""

        first: tuple[int, float] | None = None
        is_done = False

        def after_step(self, session: Any) -> None:
            if self.first is None:
                print(json.dumps({"event": "first step"}), flush=True)
                self.first = (-1, 0.0)
            elif self.first[0] < 0 and session.step >= WARM_UP:
                self.first = (session.step, time.process_time())
            elif not self.is_done and 0 <= self.first[0] <= session.step - STEPS:
                self.is_done = True
                engine = session._engine
                worker = getattr(engine, "_train_remote", None) or engine._work_remote
                graph = worker.graph.as_graph_def()
                nodes = len(graph.node) + sum(len(f.node_def) for f in graph.library.function)
                seconds = time.process_time() - self.first[1]
                figures = {
                    "event": "measured",
                    "milliseconds": 1000 * seconds / (session.step - self.first[0]),
                    "threads": len(list(Path("/proc/self/task").iterdir())),
                    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                    "nodes": nodes,
                }
                print(json.dumps(figures), flush=True)

    config = phalanx.RunConfig.parse_known().replace(
        train_steps=10**9, global_batch_size=8 * count_workers(), steps_per_call=1,
        chief_trains=False, log_steps=None, summary_steps=None,
    )  # fmt: skip
    experiment = phalanx.Experiment(model=make_model, train_data=make_data, name="scale")
    phalanx.run(experiment, config, hooks=[Measure()])


def count_workers() -> int:
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])


def measure(tasks: int, mode: str, directory: str) -> dict[str, float]:
    """Run a job, kill a worker, end the job, and return its figures."""
    ports = iter(free_ports(tasks))
    shape = {"chief": 1, "worker": tasks - 2, "ps": 1}
    cluster = {
        role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in shape.items()
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = ForkServer.start(sys.executable, ["tensorflow", "keras"], environment)
    while server.is_starting():
        time.sleep(0.05)
    processes: dict[str, ForkedProcess] = {}
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for role, addresses in cluster.items():
        for index in range(len(addresses)):
            config = {"cluster": cluster, "task": {"type": role, "index": index}}
            processes[f"{role}-{index}"] = server.fork(
                [sys.executable, __file__, "--task", "--model-dir", directory, *MODES[mode]],
                {**environment, "TF_CONFIG": json.dumps(config)},
                writing if role == "chief" else nothing,
            )
    os.close(writing)
    os.close(nothing)
    chief = processes["chief-0"]
    limit = threading.Timer(WAIT_SECONDS, os.kill, (chief.pid, signal.SIGKILL))
    limit.start()
    output = os.fdopen(reading)
    try:
        wait_for(output, "first step")
        cpu = sum(seconds for p in processes.values() for seconds in measure_tree(p.pid).values())
        found = json.loads(wait_for(output, "measured"))
        killed = time.monotonic()
        os.kill(processes["worker-0"].pid, signal.SIGKILL)
        wait_for(output, "failed with", "was lost")
        lost = time.monotonic()
        os.kill(chief.pid, signal.SIGTERM)
        output.read()
        for process in processes.values():
            process.wait(120)
        ended = time.monotonic()
    finally:
        limit.cancel()
        server.process.kill()
        server.close()
        output.close()
    del found["event"]
    return {**found, "cpu": cpu / tasks, "notice": lost - killed, "end": ended - lost}


def wait_for(output: IO[str], *texts: str) -> str:
    """Return the first line of the chief's output that has one of the texts."""
    lines = []
    for line in output:
        lines.append(line)
        if any(text in line for text in texts):
            return line
    raise SystemExit(f"the chief ended before {texts[0]!r}:\n{''.join(lines)[-2000:]}")


def draw(figures: dict[str, dict[int, dict[str, float]]], path: str) -> None:
    """Draw each figure against the number of tasks."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(12, 5.5), layout="constrained")
    axes = canvas.subplots(2, 4).flat
    for axis, (name, title) in zip(axes, TITLES.items(), strict=False):
        for mode, sizes in figures.items():
            axis.plot(list(sizes), [each[name] for each in sizes.values()], "o-", label=mode)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("tasks", fontsize=8)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=8)
    axes[0].legend(fontsize=8)
    canvas.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--plot", metavar="FILE")
    arguments = parser.parse_args()
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    sizes = [size for size in SIZES if size * TASK_GIGABYTES < free]
    figures: dict[str, dict[int, dict[str, float]]] = {}
    for mode in MODES:
        print(f"{mode:6}{'tasks':>6}" + "".join(f"{name:>14}" for name in TITLES), flush=True)
        for size in sizes:
            with tempfile.TemporaryDirectory() as directory:
                found = figures.setdefault(mode, {})[size] = measure(size, mode, directory)
            print(
                f"{'':6}{size:6}" + "".join(f"{found[name]:14.3g}" for name in TITLES), flush=True
            )
    if arguments.plot:
        draw(figures, arguments.plot)
    for mode, by_size in figures.items():
        small, large = by_size[sizes[0]], by_size[sizes[-1]]
        growth = sizes[-1] / sizes[0]
        for name, goal in GOALS.items():
            ratio = large[name] / small[name]
            limit = growth if goal is None else goal
            print(f"RESULT {mode}_{name}_{sizes[-1]}_vs_{sizes[0]} {ratio:.2f} x goal <= {limit:g}")


if __name__ == "__main__":
    train() if "--task" in sys.argv else main()
