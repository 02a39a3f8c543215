"""Programs of 2017 on clusters: one master, parameter servers and workers, in real processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import Phalanx

ROOT = Path(__file__).parents[3]
EXPERIMENT = str(ROOT / "examples/tf1/experiment.py")
WAIT_SECONDS = 300


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class HandCluster:
    """One master, two ps and two workers, each started by hand with its own TF_CONFIG."""

    def __init__(self, directory: Path, arguments: list[str]) -> None:
        addresses = [f"localhost:{port}" for port in free_ports(5)]
        self.cluster = {"master": addresses[:1], "ps": addresses[1:3], "worker": addresses[3:]}
        self.directory = directory
        self.command = [sys.executable, "-m", "phalanx.compat.tf1", EXPERIMENT]
        self.command += [f"--job-dir={directory / 'model'}", *arguments]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for role, hosts in self.cluster.items():
            for index in range(len(hosts)):
                self.start(role, index)

    def start(self, role: str, index: int) -> None:
        config = {"cluster": self.cluster, "task": {"type": role, "index": index}}
        config["environment"] = "cloud"
        environ = {**os.environ, "TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "2"}
        with (self.directory / f"{role}-{index}.log").open("ab") as log:
            self.processes[f"{role}-{index}"] = subprocess.Popen(
                self.command, env=environ, stdout=log, stderr=log
            )

    def read(self, task: str) -> str:
        return (self.directory / f"{task}.log").read_text()

    def kill(self, task: str) -> None:
        self.processes[task].send_signal(signal.SIGKILL)
        self.processes[task].wait()

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.read("master-0")
            time.sleep(0.2)

    def wait(self) -> dict[str, int]:
        return {
            name: process.wait(timeout=WAIT_SECONDS) for name, process in self.processes.items()
        }


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., HandCluster]]:
    clusters: list[HandCluster] = []

    def begin(*arguments: str) -> HandCluster:
        clusters.append(HandCluster(tmp_path, list(arguments)))
        return clusters[-1]

    yield begin
    for cluster in clusters:
        for process in cluster.processes.values():
            process.kill()
            process.wait()


def test_experiment_on_a_cluster_by_phalanx_run(phalanx: Phalanx, tmp_path: Path) -> None:
    done = phalanx(
        *("run", "--tf1", "--ps=1", "--workers=1", f"--log-dir={tmp_path / 'logs'}", EXPERIMENT),
        *(f"--job-dir={tmp_path / 'model'}", "--train-steps=300", "--sync"),
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"accuracy at step (\d+): ([\d.]+)", done.stdout)
    assert match is not None
    assert int(match[1]) == 300
    assert float(match[2]) > 0.9
    # Synchronous training needs a gradient of both in each step.
    assert "worker-0 | this task has run" in done.stdout
    # All end by themselves: nothing had to be ended.
    assert "is ended" not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout
    assert list((tmp_path / "model/eval").glob("events*"))


@pytest.mark.slow
def test_experiment_by_hand_survives_the_death_of_a_worker_and_a_ps(
    start: Callable[..., HandCluster],
) -> None:
    cluster = start("--train-steps=20000", "--save-checkpoints-steps=500")
    cluster.wait_for(lambda: "Saving checkpoints for" in cluster.read("master-0"))
    cluster.wait_for(lambda: "step = " in cluster.read("worker-1"))
    cluster.kill("worker-1")
    cluster.start("worker", 1)
    cluster.wait_for(lambda: cluster.read("master-0").count("Saving checkpoints for") > 3)
    cluster.kill("ps-1")
    cluster.start("ps", 1)
    assert cluster.wait() == dict.fromkeys(cluster.processes, 0)
    assert re.search(r"accuracy at step 200\d\d: 0\.9", cluster.read("master-0"))
    # The session was recovered from a checkpoint.
    assert cluster.read("master-0").count("Restoring parameters") > 1
    assert "this task has run" in cluster.read("worker-1")


@pytest.mark.slow
def test_synchronous_experiment_by_hand_survives_the_death_of_a_worker_and_of_each_ps(
    start: Callable[..., HandCluster],
) -> None:
    cluster = start("--train-steps=600", "--save-checkpoints-steps=50", "--sync")

    def wait_for_saves(count: int) -> None:
        saves = cluster.read("master-0").count("Saving checkpoints for") + count
        cluster.wait_for(lambda: cluster.read("master-0").count("Saving checkpoints for") >= saves)

    # The queue of tokens is on ps-0, beside the global step.
    for role, index in (("worker", 1), ("ps", 1), ("ps", 0)):
        wait_for_saves(2)
        cluster.kill(f"{role}-{index}")
        cluster.start(role, index)
    assert cluster.wait() == dict.fromkeys(cluster.processes, 0)
    assert re.search(r"accuracy at step 600: 0\.9", cluster.read("master-0"))
    for task in ("worker-0", "worker-1"):
        # Each trained to the end; the workers do not end as if training were done.
        steps = [int(step) for step in re.findall(r"step = (\d+)", cluster.read(task))]
        assert steps[-1] > 450


def find_accuracy(text: str) -> float:
    match = re.search(r"accuracy[^:]*: ([\d.]+)", text)
    assert match is not None, text
    return float(match[1])


@pytest.mark.slow
def test_wide_and_deep_is_as_accurate_as_a_keras_model_of_its_shape(tmp_path: Path) -> None:
    example, programs = ROOT / "examples/tf1", ROOT / "tests/programs/tf1"
    found = []
    for command in (
        [example / "wide_deep.py", f"--model_dir={tmp_path}"],
        [programs / "keras_census.py", example],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "phalanx.compat.tf1", *map(str, command)],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        found.append(find_accuracy(done.stdout))
    assert found[0] > 0.9
    assert abs(found[0] - found[1]) < 0.03


@pytest.mark.slow
def test_evaluator_evaluates_and_exports_beside_the_master(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    done = phalanx(
        *(
            "run",
            "--tf1",
            "--ps=1",
            "--workers=1",
            "--evaluator",
            ROOT / "examples/tf1/wide_deep.py",
        ),
        f"--model_dir={tmp_path / 'model'}",
        timeout=2 * WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "evaluator-0 | INFO:tensorflow:Evaluation of" in done.stdout
    assert "is ended" not in done.stdout + done.stderr
    assert len(list((tmp_path / "model/export/census").glob("[0-9]*/saved_model.pb"))) == 1


@pytest.mark.slow
def test_towers_train_alike_by_estimator_and_by_synchronous_experiment(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    data = ("dataset", "synthetic", "--count=2000", "--eval-count=500", "--suffix=tfrecords")
    assert phalanx(*data, "--out=data").returncode == 0
    flags = ("--data_dir=data", "--num_layers=8", "--train_steps=40", "--num_towers=2")
    program = ROOT / "examples/tf1/towers.py"
    alone = phalanx("run", "--tf1", program, *flags, "--model_dir=one", timeout=WAIT_SECONDS)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    together = phalanx(
        *("run", "--tf1", "--ps=1", "--workers=1", program, *flags),
        *("--model_dir=two", "--sync=True"),
        timeout=2 * WAIT_SECONDS,
    )
    assert together.returncode == 0, together.stdout + together.stderr
    assert find_accuracy(alone.stdout) > 0.9
    assert find_accuracy(together.stdout) > 0.9
