"""A dispatcher and two data workers in processes of their own, and a task that trains on them."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from phalanx.data import Pipeline
from phalanx.errors import DataError
from phalanx.records import write_examples

SERVER = """
import signal, sys, threading
from phalanx.data.service import run_data_worker, run_dispatcher
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
if len(sys.argv) == 2:
    run_dispatcher(int(sys.argv[1]), stop)
else:
    run_data_worker(sys.argv[2], int(sys.argv[1]), stop)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def test_data_workers_serve_each_example_once(tmp_path: Path) -> None:
    from phalanx.data.service import served_dataset

    for part in range(4):
        numbers = np.arange(part * 250, (part + 1) * 250)
        pixels = [bytes([n % 200] * 4) for n in numbers]
        write_examples(tmp_path / f"{part}.tfrecord", {"id": numbers, "pixels": pixels})
    dispatcher = free_port()
    with ExitStack() as stack:
        processes = []
        for arguments in ([dispatcher], *([free_port(), f"localhost:{dispatcher}"],) * 1,
                          [free_port(), f"localhost:{dispatcher}"]):  # fmt: skip
            command = [sys.executable, "-c", SERVER, *map(str, arguments)]
            processes.append(stack.enter_context(subprocess.Popen(command)))
        for process in processes:
            stack.callback(process.terminate)
        pipeline = Pipeline.from_records(tmp_path / "*.tfrecord", seed=1, raw={"pixels": "uint8"})
        pipeline = pipeline.map(lambda batch: {"id": batch["id"], "first": batch["pixels"][:, 0]})
        dataset = served_dataset(pipeline, f"localhost:{dispatcher}", 32, epochs=1)
        found = []
        for batch in dataset:
            np.testing.assert_array_equal(batch["first"], batch["id"].numpy() % 200)
            found += batch["id"].numpy().tolist()
    assert sorted(found) == list(range(1000))
    assert all(process.returncode == 0 for process in processes)


def test_only_records_can_be_served() -> None:
    from phalanx.data.service import served_dataset

    with pytest.raises(DataError, match="not a ArraySource"):
        served_dataset(Pipeline.from_arrays({"a": np.arange(3)}), "localhost:1", 2)
