from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phalanx
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.backends.local.preload import PHALANX
from phalanx.launch.processes.forks import ForkedProcess, ForkServer

PROGRAM = Path(__file__).parent / "programs" / "toy.py"
ROLES = {"c": "chief", "w": "worker", "p": "ps", "e": "evaluator"}


class Forked(ForkedProcess):
    """A process of a fork server, with the methods of `Popen` that tests use."""

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    @property
    def returncode(self) -> int | None:
        return self.poll()


@dataclass
class Tasks:
    """The processes of one cluster, started by hand with TF_CONFIG, and their logs.

    They are forked from a server that has imported TensorFlow, where this is possible.
    """

    directory: Path
    server: ForkServer | None = None
    processes: dict[str, subprocess.Popen[bytes] | Forked] = field(default_factory=dict)
    commands: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def addresses(self, count: int) -> list[str]:
        """So many addresses on this machine, which nobody else is given until the end."""
        return [f"127.0.0.1:{port}" for port in self.held.enter_context(hold_ports(count))]

    def start(self, task: str) -> None:
        """Start a task, or start it again, with a new log."""
        command, environment = self.commands[task]
        with (self.directory / f"{task}.log").open("wb") as log:
            if self.server and self.server.can_fork(command[0], environment):
                forked = self.server.fork(command, environment, log.fileno())
                self.processes[task] = Forked(self.server, forked.pid)
            else:
                self.processes[task] = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=subprocess.STDOUT
                )

    def log(self, task: str) -> str:
        return (self.directory / f"{task}.log").read_text(errors="replace")

    def wait_for_line(self, task: str, text: str, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log(task):
            assert time.monotonic() < deadline, f"{task} never said {text!r}:\n{self.log(task)}"
            assert self.processes[task].poll() is None, self.log(task)
            time.sleep(0.05)

    def wait(self, seconds: float = 600) -> dict[str, int]:
        """The exit code of every task; to be late is to fail."""
        deadline = time.monotonic() + seconds
        codes = {}
        for task, process in self.processes.items():
            try:
                codes[task] = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"{task} did not end within {seconds} s:\n{self.log(task)[-3000:]}")
        return codes

    def check(self, seconds: float = 600) -> None:
        """All tasks must end well, by themselves."""
        codes = self.wait(seconds)
        bad = [task for task, code in codes.items() if code]
        assert not bad, "\n".join(
            f"{task}: {codes[task]}\n{self.log(task)[-3000:]}" for task in bad
        )

    def kill(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self.held.close()


@pytest.fixture
def config(tmp_path: Path) -> phalanx.RunConfig:
    """A short run of one process."""
    folder = str(tmp_path / "run")
    return phalanx.RunConfig(model_dir=folder, train_steps=6, global_batch_size=16, seed=1)


StartCluster = Callable[..., Tasks]


def make_environment() -> dict[str, str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("TF_CONFIG", None)
    return environment


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer.start(sys.executable, PHALANX, make_environment())
    yield server
    server.close()


@pytest.fixture(scope="module")
def start_cluster(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[StartCluster]:
    started: list[Tasks] = []

    def start(
        shape: str,
        *flags: str,
        without: str = "",
        program: Path = PROGRAM,
        wrap_ps: Sequence[str] = (),
    ) -> Tasks:
        """`shape` names the tasks: c w w p; `without` names tasks that are never started.

        `wrap_ps` is a command that starts the commands of parameter servers.
        """
        while fork_server.is_starting():
            time.sleep(0.05)
        tasks = Tasks(tmp_path_factory.mktemp("cluster"), fork_server)
        started.append(tasks)
        names = [ROLES[letter] for letter in shape.split()]
        addresses: dict[str, list[str]] = {}
        for role, address in zip(names, tasks.addresses(len(names)), strict=True):
            addresses.setdefault(role, []).append(address)
        for role, listed in addresses.items():
            for index in range(len(listed)):
                if f"{role}-{index}" in without.split():
                    continue
                config: dict[str, Any] = {"task": {"type": role, "index": index}}
                environment = make_environment()
                if len(names) > 1:
                    environment["TF_CONFIG"] = json.dumps({"cluster": addresses, **config})
                wrapper = wrap_ps if role == "ps" else ()
                command = [*wrapper, sys.executable, str(program), *flags]
                tasks.commands[f"{role}-{index}"] = command, environment
                tasks.start(f"{role}-{index}")
        return tasks

    yield start
    for tasks in started:
        tasks.kill()


@pytest.fixture
def read_checkpoint() -> Callable[[Path, int], dict[str, Any]]:
    """Model, optimizer and numbers of a checkpoint, as plain TensorFlow reads them."""
    import tensorflow as tf

    def read(directory: Path, step: int) -> dict[str, Any]:
        reader = tf.train.load_checkpoint(str(directory / f"model.ckpt-{step}"))
        return {
            name: np.asarray(reader.get_tensor(name))
            for name in reader.get_variable_to_shape_map()
            if name.endswith("VARIABLE_VALUE") and "save_counter" not in name
        }

    return read
