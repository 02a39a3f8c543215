"""Launching in tests: a state directory of the test's own, and the program that stands in."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.served_numbers import check_numbers, write_numbers
from tests.servers.processes import TEST_RUN, find_tasks, wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = Path(__file__).parents[1] / "programs/train.py"


@pytest.fixture
def launching(phalanx: Phalanx, tmp_path: Path) -> Phalanx:
    """`phalanx` in a directory with train.py; jobs are remembered there, too."""
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "phalanx.toml").write_text(f'env = ["TEST_RUN={TEST_RUN}"]')

    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        return phalanx(*arguments, XDG_STATE_HOME=str(tmp_path / "state"), **more)

    return run


EXAMPLE = Path(__file__).parents[2] / "examples/plain_tensorflow/train.py"
DIGITS = PROGRAM.with_name("digits.py")


def restarts_of(phalanx: Phalanx, task: str) -> int:
    """How often the task was started again."""
    tasks = json.loads(phalanx("status", "--json", "digits").stdout)["tasks"]
    return next(int(each["restarts"]) for each in tasks if each["task"] == task)


@pytest.fixture
def train_with_tensorflow(tmp_path: Path) -> Callable[..., None]:
    """Real training with a chief, 2 workers and a ps, one worker killed in the middle."""

    def train(phalanx: Phalanx, *command: object, python: str = sys.executable) -> None:
        shutil.copy(EXAMPLE, tmp_path / "plain.py")
        shutil.copy(DIGITS, tmp_path)
        (tmp_path / "hold").touch()
        shape = ["--workers", 2, "--ps", 1, "--restarts", 1, "--name", "digits"]
        program = ["--python", python] if python else []
        done = phalanx("launch", *command, *shape, *program, "digits.py", "--train-steps", 1000)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: "step 100" in phalanx("logs", "digits", "chief-0").stdout)
        os.kill(find_tasks("digits.py")["worker-1"][0], signal.SIGKILL)
        wait_for(lambda: restarts_of(phalanx, "worker-1") == 1)
        (tmp_path / "hold").unlink()
        ended = phalanx("logs", "-f", "digits", timeout=600)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        accuracy = re.search(r"chief-0  \| accuracy ([\d.]+)%", ended.stdout)
        assert accuracy is not None
        assert float(accuracy[1]) > 80
        assert not find_tasks("digits.py")

    return train


@pytest.fixture
def read_from_data_workers(tmp_path: Path) -> Callable[..., None]:
    """Two workers read what a dispatcher and data workers serve, each example once a pass."""

    def read(
        phalanx: Phalanx, *command: object, servers: int = 2, python: str = sys.executable
    ) -> None:
        write_numbers(tmp_path)
        shape = ["--no-chief", "--workers", 2, "--data-workers", servers, "--name", "reading"]
        program = ["--python", python] if python else []
        done = phalanx("launch", *command, *shape, *program, "read_served.py")
        assert done.returncode == 0, done.stderr
        assert f"2 workers, 1 dispatcher, {servers} data-worker" in done.stderr
        ended = phalanx("logs", "-f", "reading", timeout=600)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        check_numbers(tmp_path, "worker-0", "worker-1")

    return read
