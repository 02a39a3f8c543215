"""tf.data service in real processes, started beside a job by the launcher."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.served_numbers import check_numbers, write_numbers

from phalanx.data import Pipeline
from phalanx.errors import DataError

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

# A synchronous experiment: the chief and the worker share the served data.
EXPERIMENT = """
import keras, phalanx
from phalanx.data import Pipeline

pipeline = Pipeline.from_records("*.tfrecord", seed=1, raw={"pixels": "uint8"})
pipeline = pipeline.map(lambda b: (b["pixels"] / 255, b["id"] % 2))

def train_data(context):
    assert context.data_service
    service = context.data_service
    return pipeline.dataset(context.batch_size, share=context, epochs=1, service=service)

def eval_data(context):
    assert context.data_service is None
    return pipeline.dataset(context.batch_size, share=context, epochs=1)

phalanx.run(phalanx.Experiment(
    model=lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),
    train_data=train_data, eval_data=eval_data,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=lambda: keras.optimizers.SGD(0.01),
))
"""


def test_data_workers_serve_each_example_once_per_iteration(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    write_numbers(tmp_path)
    shape = ["--workers", 1, "--data-workers", 2, "--linger", 200, "--log-dir", "logs"]
    done = phalanx("run", *shape, "read_served.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 chief, 1 worker, 1 dispatcher, 2 data-workers" in done.stderr
    check_numbers(tmp_path, "chief-0", "worker-0")
    assert "data worker of 127.0.0.1:" in (tmp_path / "logs/data-worker-1.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [["--workers", 1], ["--workers", 2, "--ps", 1]])
def test_experiment_trains_on_served_data(
    phalanx: Phalanx, tmp_path: Path, shape: list[object]
) -> None:
    write_numbers(tmp_path)
    (tmp_path / "train.py").write_text(EXPERIMENT)
    command = ["--epochs", 3, "--global-batch-size", 24, "--model-dir", "model"]
    served = ["--data-workers", 2, "--linger", 200]
    done = phalanx("run", *shape, *served, "train.py", *command, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_servers_started_by_hand_stop_on_signal(start_phalanx: Callable[..., object]) -> None:
    """Even a worker without its dispatcher, for which TensorFlow would wait and ignore signals."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for arguments in (["dispatcher", "--port", port], ["worker", "localhost:1", "--port", port]):
        server = start_phalanx("data-service", *arguments)
        assert isinstance(server, subprocess.Popen)
        assert server.stderr is not None
        assert any("(stop with Ctrl-C)" in line for line in server.stderr)
        server.send_signal(signal.SIGTERM)
        assert server.wait(250) == 0


def test_only_record_sources_can_be_served() -> None:
    with pytest.raises(DataError, match="not a ArraySource"):
        Pipeline.from_arrays({"a": np.arange(3)}).dataset(2, service="localhost:1")


def test_unreachable_dispatcher_is_named(tmp_path: Path) -> None:
    from phalanx.data.service import served_dataset

    write_numbers(tmp_path)
    pipeline = Pipeline.from_records(tmp_path / "*.tfrecord")
    with pytest.raises(
        DataError, match="gave up after 1 s waiting for dispatcher-0 at localhost:1:"
    ):
        served_dataset(pipeline, "localhost:1", 2, wait_seconds=1)


def test_address_without_port_is_rejected(tmp_path: Path) -> None:
    write_numbers(tmp_path)
    pipeline = Pipeline.from_records(tmp_path / "*.tfrecord")
    with pytest.raises(DataError, match="'somewhere' is not the address of a dispatcher"):
        pipeline.dataset(2, service="somewhere")


@pytest.mark.parametrize("address", ["somewhere", "5050"])
def test_address_without_port_is_a_usage_error(phalanx: Phalanx, address: str) -> None:
    done = phalanx("data-service", "worker", address)
    assert done.returncode == 2
    assert f"DISPATCHER: '{address}' has no port" in done.stderr
