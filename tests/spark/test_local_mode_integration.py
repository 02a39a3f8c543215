"""`run` without Spark: the same tasks, job controller and processes, on this machine."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.servers.processes import wait_for

from phalanx.cluster.spec import Role, Task
from phalanx.errors import ConfigurationError, JobError, WorkerError
from phalanx.launch.processes.guardian import find_run_processes
from phalanx.spark import run
from phalanx.spark.connection import Connection
from phalanx.spark.job_controller import JobController


def on(role: str) -> bool:
    return bool(json.loads(os.environ["TF_CONFIG"])["task"]["type"] == role)


def test_returns_the_value_of_the_chief_and_logs_output_by_task() -> None:
    def train(offset: int) -> dict[str, Any]:
        print("here is", os.environ["PHALANX_TASK"])
        return {"cluster": json.loads(os.environ["TF_CONFIG"])["cluster"], "value": offset + 1}

    shown: list[str] = []
    result = run(train, arguments={"offset": 4}, workers=1, local_mode=True, log=shown.append)
    assert result["value"] == 5
    assert sorted(shown) == ["chief-0  | here is chief-0", "worker-0 | here is worker-0"]
    assert len(set(result["cluster"]["chief"] + result["cluster"]["worker"])) == 2


def test_parameter_servers_are_ended_after_success() -> None:
    def train() -> str:
        if on("ps"):
            time.sleep(600)
        return "done"

    assert run(train, workers=1, ps=1, local_mode=True) == "done"


def test_failed_task_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    def train() -> None:
        if on("worker"):
            raise ValueError("bad luck")
        (tmp_path / "chief").write_text(str(os.getpid()))
        time.sleep(600)

    shown: list[str] = []
    with pytest.raises(WorkerError) as raised:
        run(train, workers=1, local_mode=True, log=shown.append)
    text = str(raised.value)
    assert text.startswith("worker-0 failed:\nTraceback")
    assert text.endswith("ValueError: bad luck")
    assert text.count("bad luck") == 2  # the line of the program, and the error
    assert "phalanx/spark" not in text
    assert not any("bad luck" in line for line in shown)
    assert not [pid for pid in _pids(tmp_path) if Path(f"/proc/{pid}").exists()]


def _pids(directory: Path) -> list[int]:
    return [int(path.read_text()) for path in directory.iterdir()]


def test_all_tasks_restart_up_to_the_limit(tmp_path: Path) -> None:
    def train() -> int:
        count = len(list(tmp_path.glob("chief-*")))
        if on("chief"):
            (tmp_path / f"chief-{count}").touch()
        if on("worker"):
            (tmp_path / f"worker-{len(list(tmp_path.glob('worker-*')))}").touch()
            time.sleep(600 if count < 2 else 0)
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if count == 1:
            raise OSError("again")
        return count

    shown: list[str] = []
    assert run(train, workers=1, local_mode=True, restarts=2, log=shown.append) == 2
    notes = [line for line in shown if line.startswith("phalanx: ")]
    assert "SIGKILL" in notes[0]
    assert notes[1] == "phalanx: OSError: again; restarting all tasks, 2 of 2"


def test_configuration_error_is_not_retried(tmp_path: Path) -> None:
    def train() -> None:
        (tmp_path / str(time.monotonic_ns())).touch()
        raise ConfigurationError("model_dir is not set")

    with pytest.raises(ConfigurationError, match=r"^model_dir is not set$"):
        run(train, local_mode=True, restarts=3)
    assert len(list(tmp_path.iterdir())) == 1


def test_child_processes_of_tasks_are_ended(tmp_path: Path) -> None:
    def train() -> str:
        import subprocess

        subprocess.Popen(["sleep", "600"], start_new_session=True)
        return os.environ["PHALANX_RUN_ID"]

    assert find_run_processes(run(train, local_mode=True)) == []


def test_value_that_cannot_be_pickled_raises() -> None:
    with pytest.raises(ConfigurationError, match="what the function returned cannot be sent"):
        run(threading.Lock, local_mode=True)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("nobody trains", {"chief": False}),
        ("1 ps but no worker", {"ps": 1}),
        ("worker is -1", {"workers": -1}),
        ("restarts is -1", {"restarts": -1}),
        ("config is for experiments", {"config": object()}),
        ("mode is for experiments", {"mode": "sync"}),
    ],
)
def test_wrong_use(words: str, settings: dict[str, Any]) -> None:
    with pytest.raises(JobError, match=words):
        run(lambda: None, local_mode=True, **settings)


def test_neither_experiment_nor_function_raises() -> None:
    with pytest.raises(JobError, match="give an Experiment or a function"):
        run(3, local_mode=True)  # type: ignore[arg-type]


def test_driver_port_in_use_raises() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(JobError, match=f"cannot listen on port {port}"):
            run(lambda: None, local_mode=True, driver_port=port)


def test_output_that_cannot_be_shown_does_not_end_the_job() -> None:
    def show(task: Task, lines: list[str]) -> None:
        raise BrokenPipeError(*lines)

    controller = JobController(
        [Task(Role.CHIEF)], show, wait_seconds=600, on_absent=lambda tasks: None
    )
    with controller, closing(Connection.connect("127.0.0.1", controller.port)) as connection:
        connection.answer(controller.token, "chief-0")
        connection.send(lines=["hello"])
        connection.send(ended=None)
        assert connection.receive(30) == {"leave": True}


def test_connection_without_the_token_is_closed() -> None:
    absent: list[list[Task]] = []
    shown: list[str] = []
    controller = JobController(
        [Task(Role.CHIEF)],
        lambda task, lines: shown.extend(lines),
        wait_seconds=1,
        on_absent=absent.append,
    )
    with controller, closing(Connection.connect("127.0.0.1", controller.port)) as connection:
        connection.answer("guessed", "chief-0")
        connection.send(lines=["hello"])
        assert connection.receive(30) is None
        wait_for(lambda: absent)
    assert absent == [[Task(Role.CHIEF)]]
    assert not shown
