"""A preempted task: its peers save and exit with 75, and nothing of that counts as a failure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers import kubernetes
from tests.servers.kubernetes.pods import Pod
from tests.servers.processes import wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

# As phalanx.run does: SIGTERM interrupts the task that gets it, and that one all others.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}-{task['index']}"
count = lambda: len(list(Path().glob("interrupted-*")))
before = count()

def interrupt(*_):
    Path(f"interrupted-{name}-{before}").touch()
    sys.exit(75)

signal.signal(signal.SIGTERM, interrupt)
Path(f"started-{name}-{before}").touch()
while not Path("finish").exists() or task["type"] == "ps":
    if count() > before:
        sys.exit(75)
    time.sleep(0.05)
"""
TASKS = ("chief-0", "worker-0", "worker-1", "ps-0")


def wait_for_start(directory: Path, number: int) -> None:
    """Wait until every task has started after this number of interruptions."""
    paths = [directory / f"started-{task}-{number}" for task in TASKS]
    wait_for(lambda: all(path.exists() for path in paths))


@pytest.mark.parametrize(
    ("backend", "restarts"),
    [
        ("kubernetes", 0),
        *(
            pytest.param(backend, restarts, marks=pytest.mark.slow)
            for backend, restarts in [("kubeflow", 0), ("kubeflow", 1), ("trainjob", 0)]
        ),
    ],
)
def test_two_evictions_do_not_count(
    launching: Phalanx, tmp_path: Path, backend: str, restarts: int
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    shape = ["--workers", 2, "--ps", 1, "--restarts", restarts]
    options = ["--image", "a", "--python", sys.executable]
    (tmp_path / "cluster").mkdir()
    with kubernetes.running(tmp_path / "cluster", tmp_path) as (cluster, variables):
        done = launching("launch", backend, *options, *shape, "train.py", **variables)
        assert done.returncode == 0, done.stderr
        for number in range(2):
            wait_for_start(tmp_path, number)
            with cluster.lock:
                running = [pod for pod in cluster.pods if pod.phase() == "Running"]
                next(pod for pod in running if "worker" in pod.hostname).evict()
        wait_for_start(tmp_path, 2)
        (tmp_path / "finish").touch()
        ended = launching("logs", "-f", "train", **variables)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("role", ["chief", "worker"])
def test_another_exit_code_still_fails_the_job(
    launching: Phalanx, tmp_path: Path, role: str
) -> None:
    failing = (
        f"import os, sys, time; sys.exit(74) if '\"{role}\", \"index' in os.environ['TF_CONFIG']"
    )
    (tmp_path / "train.py").write_text(f"{failing} else time.sleep(600)")
    options = ["--image", "a", "--python", sys.executable, "--workers", 1, "--follow"]
    with kubernetes.running(tmp_path, tmp_path) as (_, variables):
        done = launching("launch", "kubeflow", *options, "train.py", **variables)
    assert done.returncode == 1
    assert f"{role}-0 failed with exit code 74" in done.stderr


@pytest.mark.slow
def test_wrong_usage_is_not_tried_again(launching: Phalanx, tmp_path: Path) -> None:
    program = "import sys; print('I am told', sys.argv[1:]); sys.exit(2)"
    (tmp_path / "train.py").write_text(program)
    options = ["--image", "a", "--python", sys.executable, "--restarts", 3, "--follow"]
    with kubernetes.running(tmp_path, tmp_path) as (_, variables):
        done = launching("launch", "kubernetes", *options, "train.py", "wrong", **variables)
    assert done.returncode == 1
    assert done.stdout.count("I am told ['wrong']") == 1
    assert "chief-0 failed with exit code 2" in done.stderr


TOY = Path(__file__).parents[2] / "train/programs/toy.py"
# The number of steps is read from a file, so that the test decides when the run ends.
TRAINING = """
import runpy, sys, time
from pathlib import Path
import phalanx, tensorflow

while not Path("steps").exists():
    time.sleep(0.1)
steps = Path("steps").read_text()
flags = ["--global-batch-size", "30", "--log-steps", "10", "--model-dir", "model"]
sys.argv = ["toy.py", *flags, "--train-steps", steps]
runpy.run_path("toy.py", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["kubernetes", "kubeflow", "trainjob"])
def test_real_training_survives_two_evictions_without_restarts(
    launching: Phalanx, tmp_path: Path, backend: str
) -> None:
    if os.getuid() != 0 or not shutil.which("ip"):
        pytest.skip("networks need root and ip (iproute2)")
    pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")
    shutil.copy(TOY, tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    steps = tmp_path / "steps"
    steps.write_text("100000000")
    (tmp_path / "cluster").mkdir()
    running = kubernetes.running(tmp_path / "cluster", tmp_path, isolated=True)
    with running as (cluster, variables):
        shape = ["--workers", 2, "--ps", 1]
        options = ["--image", "a", "--python", sys.executable, "--name", "train"]
        done = launching("launch", backend, *options, *shape, "train.py", **variables)
        assert done.returncode == 0, done.stderr

        saved = re.compile(r"received SIGTERM: step (\d+) is saved")

        def read_chief() -> str:
            """What the chief has printed, in all its pods."""
            logs = sorted((tmp_path / "cluster").glob("train-chief-*.log"), key=os.path.getmtime)
            return "".join(log.read_text() for log in logs)

        def find_worker() -> Pod | None:
            """Return the pod of worker 1, if it has joined the cluster."""
            with cluster.lock:
                pods = [pod for pod in cluster.pods if re.search(r"worker.*-1$", pod.hostname)]
            running = [pod for pod in pods if pod.phase() == "Running" and not pod.is_leaving()]
            return next((pod for pod in running if "serves at" in pod.log.read_text()), None)

        for number in range(2):
            # A run that is resumed logs its speed again.
            seen = len(read_chief())
            wait_for(lambda seen=seen: "examples/sec" in read_chief()[seen:], 300)  # type: ignore[misc]
            wait_for(find_worker, 300)
            if number == 1:
                steps.unlink()
            worker = find_worker()
            assert worker is not None
            with cluster.lock:
                worker.evict()
            wait_for(lambda saves=number + 1: len(saved.findall(read_chief())) == saves, 300)  # type: ignore[misc]
        last = int(saved.findall(read_chief())[-1]) + 20
        steps.write_text(str(last))
        ended = launching("logs", "-f", "train", **variables, timeout=600)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / f"model/model.ckpt-{last}.index").exists()
