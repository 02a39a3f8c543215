"""`phalanx launch marathon` against a stand-in that runs the apps for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers import marathon
from tests.servers.processes import find_tasks, wait_for

pytestmark = pytest.mark.slow

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
Server = tuple[marathon.Marathon, dict[str, str], int]


@pytest.fixture
def server(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with marathon.running(tmp_path_factory.mktemp("marathon"), tmp_path) as started:
        yield started


@pytest.fixture
def launch(launching: Phalanx, server: Server) -> Phalanx:
    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        return launching(*arguments, **{**server[1], **more})

    return run


@pytest.fixture
def options(server: Server) -> list[object]:
    ports = ["--agent-port", server[2], "--host-name", "127.0.0.1", "--port", 24000]
    return ["--image", "digits:1", "--memory", "1G", *ports]


PYTHON = ["--python", sys.executable]


def test_job_succeeds_after_a_killed_worker_restarts(
    launch: Phalanx, tmp_path: Path, server: Server, options: list[object]
) -> None:
    (tmp_path / "hold").touch()
    shape = ["--workers", 2, "--ps", 1, "--restarts", 1, *PYTHON]
    program = ["train.py", 3, "{role} {index} {ps_hosts} $(date) it's"]
    done = launch("launch", "marathon", *options, *shape, *program)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "step 2" in launch("logs", "train", "worker-1").stdout)
    os.kill(find_tasks("train.py")["worker-1"][0], signal.SIGKILL)
    wait_for(lambda: "1 restart" in launch("status", "train").stdout)
    (tmp_path / "hold").unlink()
    ended = launch("logs", "-f", "train")
    assert ended.returncode == 0, ended.stderr
    assert "train succeeded" in ended.stderr
    said = "worker-1 | I am worker 1 worker 1 127.0.0.1:24003 $(date) it's\n"
    assert ended.stdout.count(said) == 2
    assert "Marathon reports: Command exited with status 137" in ended.stdout
    assert "ps-0      ended" in launch("status", "train").stdout
    wait_for(lambda: not server[0].apps)
    assert not find_tasks("train.py")


def test_cancelled_tasks_save_and_leave_nothing_behind(
    launch: Phalanx, server: Server, options: list[object]
) -> None:
    launch("launch", "marathon", *options, *PYTHON, "--workers", 1, "train.py", 600)
    wait_for(lambda: "step" in launch("logs", "train", "worker-0").stdout)
    taken = launch("launch", "marathon", *options, *PYTHON, "--name", "other", "train.py", 600)
    assert taken.returncode == 0, taken.stderr
    assert launch("cancel", "other").returncode == 0
    assert launch("cancel", "train").returncode == 0
    for task in ("chief-0", "worker-0"):
        assert launch("logs", "train", task).stdout.endswith("saving\nsaved\n")
    wait_for(lambda: not server[0].apps)
    assert not find_tasks("train.py")


def test_task_that_fails_after_all_restarts_fails_the_job(
    launch: Phalanx, server: Server, options: list[object]
) -> None:
    program = ["--workers", 1, "--follow", "train.py", "many"]
    done = launch("launch", "marathon", *options, *PYTHON, *program)
    assert done.returncode == 1
    assert "failed with exit code 1" in done.stderr
    assert "ValueError: invalid literal" in done.stdout
    wait_for(lambda: not server[0].apps)


def test_tensorboard_serves_while_the_job_runs(
    launch: Phalanx, server: Server, options: list[object], tmp_path: Path
) -> None:
    board = ["--tensorboard", "--model-dir", tmp_path]
    launch("launch", "marathon", *options, *PYTHON, *board, "train.py", 600)

    def answers() -> bool:
        try:
            with urllib.request.urlopen("http://127.0.0.1:24001", timeout=5) as response:
                return b"TensorBoard" in response.read()
        except OSError:
            return False

    wait_for(answers)
    assert launch("cancel", "train").returncode == 0
    wait_for(lambda: not server[0].apps)
    assert not answers()


def test_waiting_job_reports_the_reason(launch: Phalanx, options: list[object]) -> None:
    launch("launch", "marathon", *options, *PYTHON, "--cpus", 64, "train.py", 1)
    waits = "Marathon is waiting: InsufficientCpus"
    wait_for(lambda: waits in launch("status", "train").stdout)
    assert launch("cancel", "train").returncode == 0


def test_rejected_job_is_reported(launch: Phalanx, server: Server, options: list[object]) -> None:
    program = [*PYTHON, "train.py", 1]
    cases = [
        ({"MARATHON_TOKEN": ""}, "nothing was submitted: Invalid username or password."),
        ({"MARATHON_URL": "http://127.0.0.1:1"}, "does not respond: [Errno 111]"),
        ({"MARATHON_URL": "marathon"}, "'marathon' is not a URL"),
        ({"MARATHON_URL": ""}, "no URL of Marathon is set"),
    ]
    for variables, said in cases:
        done = launch("launch", "marathon", *options, *program, **variables)
        assert done.returncode == 2
        assert said in done.stderr
    server[0].apps["/train/old"] = marathon.App(Path(), Path(), {"id": "/train/old", "cpus": 99})
    done = launch("launch", "marathon", *options, *program)
    assert done.returncode == 2
    assert "nothing was submitted: Group /train is already created" in done.stderr
    assert launch("status").stdout == ""


def test_tensorflow_trains_with_a_killed_worker(
    launch: Phalanx, options: list[object], train_with_tensorflow: Callable[..., None]
) -> None:
    train_with_tensorflow(launch, "marathon", *options, "--cpus", 1)


def test_data_workers_serve_each_example_once(
    launch: Phalanx, options: list[object], read_from_data_workers: Callable[..., None]
) -> None:
    read_from_data_workers(launch, "marathon", *options)
