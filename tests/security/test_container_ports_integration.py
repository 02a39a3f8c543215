"""Tasks in containers listen on their own address, and accept the containers of their job only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.security.closed_ports import PROGRAM, wait_for_tasks
from tests.servers import docker, namespaces

pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(docker.why_not() is not None, reason=str(docker.why_not())),
]

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
DNS = "127.0.0.11"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with docker.engine(tmp_path_factory.mktemp("docker")) as variables:
        yield variables


class Container:
    """A running container, and the way into its network."""

    def __init__(self, engine: dict[str, str], name: str) -> None:
        about: Any = json.loads(ask(engine, "inspect", name))[0]
        [(self.network, network)] = about["NetworkSettings"]["Networks"].items()
        self.address = network["IPAddress"]
        self.published = about["NetworkSettings"]["Ports"]
        self.enter = ["nsenter", f"--target={about['State']['Pid']}", "--net"]

    def list_listeners(self) -> set[str]:
        """The addresses with listening sockets, except that of the engine's name server."""
        command = [*self.enter, "ss", "-ltnH"]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        found = {line.split()[3] for line in lines.stdout.splitlines()}
        plain = {each.replace("[::ffff:", "").replace("]:", ":") for each in found}
        return {each for each in plain if not each.startswith(DNS)}


def ask(engine: dict[str, str], *arguments: str) -> str:
    command = ["docker", *arguments]
    given = {"env": {**os.environ, **engine}, "timeout": 120, "text": True}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **given).stdout  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("backend", ["docker", "compose"])
def test_containers_accept_their_own_job_only(
    phalanx: Phalanx, engine: dict[str, str], tmp_path: Path, backend: str
) -> None:
    if backend == "compose" and not shutil.which("docker-compose"):
        pytest.skip("no docker-compose (Debian: docker-compose)")
    (tmp_path / "tasks").mkdir()
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), **engine}
    given = [*docker.options(tmp_path), "--workers", 1, "--name", "listen"]
    done = phalanx("launch", backend, *given, PROGRAM, "/app/tasks", **state)
    assert done.returncode == 0, done.stderr
    try:
        wait_for_tasks(tmp_path / "tasks", 2)
        chief, worker = (Container(engine, f"listen-{each}") for each in ("chief-0", "worker-0"))
        for task in (chief, worker):
            assert task.list_listeners() == {f"{task.address}:2222"}
            assert not task.published
        other = ["--name=other", f"--network={chief.network}", *docker.make_mounts()]
        ask(engine, "run", "--detach", "--rm", *other, docker.IMAGE, "sleep", "600")
        stranger = Container(engine, "other")
        for task in (chief, worker):
            # Another container of the same network, and the host.
            assert namespaces.connect(stranger.enter, task.address, 2222) == "closed"
            assert namespaces.connect([], task.address, 2222) == "closed"
        assert namespaces.connect(chief.enter, worker.address, 2222) == "open"
        assert namespaces.connect(worker.enter, chief.address, 2222) == "open"
        ask(engine, "rm", "--force", "other")
        (tmp_path / "tasks/stop").touch()
        ended = phalanx("logs", "-f", "listen", timeout=240, **state)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        refused = f"refused a connection from {stranger.address} to port 2222"
        assert refused in ended.stdout
    finally:
        phalanx("cancel", "listen", **state)
