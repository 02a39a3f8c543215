"""Strangers who reach the driver's port learn nothing, hold nothing, and disturb no task."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.servers.processes import wait_for

from phalanx.cluster.spec import Role, Task
from phalanx.spark import job_controller
from phalanx.spark.connection import Connection
from phalanx.spark.job_controller import Cause, JobController

CHIEF, WORKER = Task(Role.CHIEF), Task(Role.WORKER)


@contextlib.contextmanager
def controlled(*tasks: Task) -> Iterator[tuple[JobController, list[str]]]:
    shown: list[str] = []
    controller = JobController(
        tasks or [CHIEF],
        lambda task, lines: shown.extend(lines),
        host="127.0.0.1",
        wait_seconds=600,
        on_absent=lambda absent: None,
    )
    with controller:
        yield controller, shown


def knock(controller: JobController) -> socket.socket:
    return socket.create_connection(("127.0.0.1", controller.port), 30)


def is_closed(sock: socket.socket) -> bool:
    """Read to the end of the connection, if it has one within the socket's time limit."""
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def train(controller: JobController, name: str = "chief-0") -> None:
    """Do what a task does, to the end of the job."""
    with contextlib.closing(Connection.connect("127.0.0.1", controller.port)) as connection:
        connection.answer(controller.token, name)
        connection.send(lines=["hello"])
        connection.send(ended=None)
        assert connection.receive(60) == {"leave": True}


def threads() -> int:
    return sum(each.name == "phalanx-job-controller" for each in threading.enumerate())


def test_silent_strangers_are_limited_and_disturb_no_task() -> None:
    with controlled() as (controller, shown), contextlib.ExitStack() as held:
        strangers = [held.enter_context(knock(controller)) for _ in range(200)]
        assert is_closed(strangers[0])
        wait_for(lambda: threads() <= job_controller._MAX_STRANGERS + 2)
        train(controller)
        assert shown == ["hello"]


def test_greeting_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_controller, "_GREETING_SECONDS", 1.0)
    with controlled() as (controller, _), knock(controller) as stranger:
        stranger.settimeout(0.2)
        # A byte now and then, which would extend a time limit for each of them.
        for _ in range(300):
            if is_closed(stranger):
                break
            with contextlib.suppress(OSError):
                stranger.sendall(b"{")
        else:
            pytest.fail("a stranger kept its connection")


@pytest.mark.parametrize(
    "greeting",
    [
        b"x" * 5000,
        b"[]\n",
        b"null\n",
        b"\xff\n",
        b"[" * 1000 + b"\n",
        b'{"task": ["chief-0"], "proof": 1}\n',
        b'{"task": "chief-0", "proof": "\\ud800"}\n',
        b'{"task": "chief-0", "proof": "0"}\n',
        b'{"task": "chief-0", "token": "0"}\n',
    ],
)
def test_wrong_greeting_is_closed(greeting: bytes) -> None:
    with controlled() as (controller, shown), knock(controller) as stranger:
        stranger.sendall(greeting)
        assert is_closed(stranger)
        train(controller)
        assert shown == ["hello"]


def test_proof_cannot_be_used_again_and_the_token_is_not_sent() -> None:
    with controlled(CHIEF, WORKER) as (controller, _):
        with knock(controller) as first, knock(controller) as second:
            nonces = [
                json.loads(sock.makefile().readline())["challenge"] for sock in (first, second)
            ]
            assert nonces[0] != nonces[1]
        near, far = socket.socketpair()
        with near, far:
            task = Connection(far)
            near.sendall(json.dumps({"challenge": nonces[0]}).encode() + b"\n")
            task.answer(controller.token, "chief-0")
            proof = near.recv(4096)
        assert controller.token.encode() not in proof
        with knock(controller) as stranger:
            stranger.sendall(proof)
            assert is_closed(stranger)


def test_task_connects_once() -> None:
    with controlled(CHIEF, WORKER) as (controller, _):
        first = Connection.connect("127.0.0.1", controller.port)
        second = Connection.connect("127.0.0.1", controller.port)
        with contextlib.closing(first), contextlib.closing(second):
            first.answer(controller.token, "chief-0")
            first.send(lines=["hello"])
            wait_for(lambda: CHIEF in controller._connections)
            second.answer(controller.token, "chief-0")
            assert second.receive(30) is None


@pytest.mark.parametrize(
    "ended", [{"cause": 99}, {"cause": "x", "text": 1, "is_final": 1}, [1], "x"]
)
def test_task_that_sends_nonsense_is_lost(ended: object) -> None:
    with controlled() as (controller, _):
        with contextlib.closing(Connection.connect("127.0.0.1", controller.port)) as connection:
            connection.answer(controller.token, "chief-0")
            connection.send(lines=3)
            connection.send(lines=[{}, None])
            connection.send(ended=ended)
            wait_for(lambda: controller.failure is not None)
        assert controller.failure is not None
        assert controller.failure.cause is Cause.LOST
