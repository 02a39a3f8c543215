"""`phalanx launch ray` with a real Ray cluster of three nodes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers import ray
from tests.servers.processes import find_tasks, wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ray.why_not() is not None, reason=str(ray.why_not())),
]
SHAPE = ["--workers", 2, "--ps", 1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    with ray.three_nodes() as variables:
        yield variables


@pytest.fixture
def launch(launching: Phalanx, cluster: dict[str, str], tmp_path: Path) -> Iterator[Phalanx]:
    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        return launching(*arguments, **{**cluster, **more})

    yield run
    for job in (tmp_path / "state/phalanx/jobs").glob("*.json"):
        run("cancel", job.stem)
        run("cancel", job.stem)


def parent_of(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def test_job_succeeds_after_a_killed_worker_restarts(
    launch: Phalanx, phalanx: Phalanx, tmp_path: Path, cluster: dict[str, str]
) -> None:
    (tmp_path / "hold").touch()
    where = ["--strategy", "spread", "--restarts", 2]
    done = launch("launch", "ray", *SHAPE, *where, "train.py", 3, "{role} {index}")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "step" in launch("logs", "train", "worker-1").stdout)
    os.kill(find_tasks("train.py")["worker-1"][0], signal.SIGKILL)
    wait_for(lambda: "1 restart" in launch("status", "train").stdout)
    wait_for(lambda: launch("logs", "train", "worker-1").stdout.count("step 0") == 2)
    # The actor itself, which is the parent of the shell that the program runs in.
    os.kill(parent_of(parent_of(find_tasks("train.py")["worker-1"][0])), signal.SIGKILL)
    wait_for(lambda: "2 restarts" in launch("status", "train").stdout)
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "other")}
    taken = phalanx("launch", "ray", "train.py", 1, **cluster, **elsewhere)
    assert taken.returncode == 2
    assert "the cluster has a job 'train' already" in taken.stderr
    (tmp_path / "hold").unlink()
    ended = launch("logs", "-f", "train")
    assert ended.returncode == 0, ended.stderr
    assert "train succeeded" in ended.stderr
    assert ended.stdout.count("worker-1 | I am worker 1 worker 1\n") == 3
    assert "worker-1 was killed by SIGKILL" in ended.stdout
    assert "worker-1 was lost with its Ray actor: restart 2 of 2" in ended.stdout
    assert "ps-0      ended" in launch("status", "train").stdout
    wait_for(lambda: not find_tasks("train.py"))
    assert launch("cancel", "train").returncode == 0
    assert launch("status").stdout == ""


def test_cancelled_tasks_get_time_to_save(launch: Phalanx) -> None:
    needs = ["--cpus", 0.5, "--cpus", "ps=1", "--memory", "worker=100M"]
    launch("launch", "ray", *SHAPE, *needs, "train.py", 600)
    wait_for(lambda: "step" in launch("logs", "train", "worker-1").stdout)
    assert launch("cancel", "train").returncode == 0
    for task in ("chief-0", "worker-0", "worker-1"):
        assert launch("logs", "train", task).stdout.endswith("saving\nsaved\n")
    assert launch("status", "train").stdout.startswith("train: failed: cancelled")
    assert not find_tasks("train.py")


def test_task_that_fails_after_all_restarts_fails_the_job(launch: Phalanx) -> None:
    done = launch("launch", "ray", "--workers", 1, "--follow", "train.py", "many")
    assert done.returncode == 1
    assert "failed with exit code 1" in done.stderr
    assert "ValueError: invalid literal" in done.stderr


def test_waiting_job_reports_the_reason(launch: Phalanx) -> None:
    launch("launch", "ray", "--name", "first", "--workers", 2, "--cpus", 2, "train.py", 600)
    done = launch("launch", "ray", "--name", "second", "--cpus", 2, "train.py", 1)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "Ray reports NO_RESOURCES" in launch("status", "second").stdout)
    assert launch("cancel", "first").returncode == 0
    assert launch("logs", "-f", "second").returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cpus", 4], "Ray could never start the job: no node has the resources of a task"),
        (
            ["--workers", 6],
            "Ray could never start the job: the job needs 7 CPU, and the cluster has 6",
        ),
        (
            ["--gpus", 1],
            "Ray could never start the job: the job needs 1 GPU, and the cluster has 0",
        ),
        (["--address", "127.0.0.1:1"], "cannot connect to a Ray cluster"),
        (["--directory", "/nonexistent", "--follow"], "/nonexistent"),
    ],
)
def test_job_that_ray_can_never_start_is_rejected(
    launch: Phalanx, options: list[object], said: str
) -> None:
    done = launch("launch", "ray", *options, "train.py", 1)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_tensorflow_trains_with_a_killed_worker(
    launch: Phalanx, train_with_tensorflow: Callable[..., None]
) -> None:
    train_with_tensorflow(launch, "ray", "--cpus", 1, "--strategy", "spread")


def test_data_workers_serve_each_example_once(
    launch: Phalanx, read_from_data_workers: Callable[..., None]
) -> None:
    read_from_data_workers(launch, "ray")
