"""Starts the tasks of a job as forks of a server that has imported their modules (see fork_server).

Four tasks that import TensorFlow at the same time need four times the CPU time of one.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Protocol, Self

from phalanx.launch.processes import fork_server
from phalanx.launch.processes.plan import TaskPlan

# A server that needs longer is not waited for; the tasks are started without it.
_IMPORT_SECONDS = 120.0
_FORK_SECONDS = 30.0
_EXIT_SECONDS = 5.0


class Process(Protocol):
    """What a supervisor needs of a process: a `Popen`, or a `ForkedProcess`."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class ForkServer:
    """The connection to a fork server."""

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, kind: object
    ) -> None:
        self.process = process
        self._connection = connection
        self._kind = kind
        self._received = b""
        self._started_at = time.monotonic()
        self._is_ready = False
        self._is_lost = False
        self._codes: dict[int, int] = {}

    @classmethod
    def start(cls, python: str, modules: Sequence[str], environment: Mapping[str, str]) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    # Modules beside the server's file must not be found instead of others.
                    *(python, "-P", fork_server.__file__, str(theirs.fileno()), ",".join(modules)),
                    fork_server.ARGUMENTS_ROOM,
                ],
                env={**environment, fork_server.TASK_VARIABLE: fork_server.TASK_ROOM},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # A pipe, as tasks have: Python looks at the kind of file when it starts.
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        ours.setblocking(False)
        return cls(process, ours, _kind(python, environment))

    def is_starting(self) -> bool:
        """Return whether the modules are being imported."""
        self._discard_output()
        self._read()
        is_late = time.monotonic() > self._started_at + _IMPORT_SECONDS
        return not (self._is_ready or self._is_lost or is_late)

    def can_fork(self, python: str, environment: Mapping[str, str]) -> bool:
        """Return whether a process with this environment can be forked."""
        self._read()
        fits = self._kind == _kind(python, environment)
        return fits and self._is_ready and not self._is_lost

    def fork(
        self, argv: Sequence[str], environment: Mapping[str, str], output: int
    ) -> "ForkedProcess":
        """Start a process that writes its output to a descriptor.

        Raises:
            OSError: The process cannot be started.
            ConnectionError: The server does not answer.
        """
        body = json.dumps({"argv": list(argv), "environment": dict(environment)}).encode()
        self._connection.settimeout(_FORK_SECONDS)
        try:
            socket.send_fds(self._connection, [len(body).to_bytes(4)], [output])
            self._connection.sendall(body)
        except OSError:
            raise self._give_up() from None
        self._connection.setblocking(False)
        answer = self._wait_for_answer()
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return ForkedProcess(self, answer["pid"])

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a process, or minus the signal's number; None while it runs."""
        if pid not in self._codes:
            self._read()
        # A server that ends takes its processes with it.
        return self._codes.get(pid, -signal.SIGKILL if self._is_lost else None)

    def close(self) -> None:
        """End the server, once its processes have ended."""
        self._connection.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._is_lost = True
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_EXIT_SECONDS)

    def _wait_for_answer(self) -> dict[str, int]:
        deadline = time.monotonic() + _FORK_SECONDS
        while True:
            for answer in self._read():
                return answer
            left = deadline - time.monotonic()
            if self._is_lost or left <= 0:
                raise self._give_up()
            select.select([self._connection], [], [], left)

    def _discard_output(self) -> None:
        """Make room in the pipe for what the imports print."""
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while os.read(self.process.stdout.fileno(), 1 << 16):
                pass

    def _give_up(self) -> ConnectionError:
        self._is_lost = True
        self.process.kill()
        return ConnectionError("the fork server does not answer")

    def _read(self) -> list[dict[str, int]]:
        """Take in what has arrived; return the answers to requests."""
        while not self._is_lost:
            try:
                chunk = self._connection.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            self._received += chunk
            self._is_lost = not chunk
        *lines, self._received = self._received.split(b"\n")
        answers = []
        for message in map(json.loads, lines):
            if "code" in message:
                self._codes[message["pid"]] = message["code"]
            elif "ready" in message:
                self._is_ready = True
            else:
                answers.append(message)
        return answers


class ForkedProcess:
    """A process that a fork server has started."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = None
        self._server = server

    def poll(self) -> int | None:
        return self._server.exit_code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.01)
        return code


class ForkServers:
    """The fork servers of a job: one for tasks that differ in nothing that an import could read."""

    def __init__(self) -> None:
        self._servers: list[ForkServer] = []

    def start(
        self, tasks: Sequence[TaskPlan], environ: Mapping[str, str], *, restarts: bool
    ) -> None:
        """Start servers for several tasks, or for tasks that may start again."""
        if sys.platform != "linux":
            return
        alike: dict[object, list[tuple[TaskPlan, dict[str, str]]]] = {}
        for task in tasks:
            if task.preload:
                environment = task.read_environment(environ)
                alike.setdefault(_kind(task.argv[0], environment), []).append((task, environment))
        for (task, environment), *others in alike.values():
            if others or restarts:
                with contextlib.suppress(OSError):
                    server = ForkServer.start(task.argv[0], task.preload, environment)
                    self._servers.append(server)

    def __iter__(self) -> Iterator[ForkServer]:
        return iter(self._servers)

    def are_starting(self) -> bool:
        return any(server.is_starting() for server in self)

    def fork(self, task: TaskPlan, environment: Mapping[str, str]) -> ForkedProcess | None:
        """Start a task whose output can be read from its `stdout`, if there is a server for it.

        Raises:
            OSError: The process cannot be started.
        """
        able = (server for server in self if server.can_fork(task.argv[0], environment))
        server = next(able, None) if task.preload else None
        if server is None:
            return None
        reading, writing = os.pipe()
        stdout = os.fdopen(reading, "rb", 0)
        try:
            process = server.fork(task.argv, environment, writing)
        except ConnectionError:
            stdout.close()
            return None
        except BaseException:
            stdout.close()
            raise
        finally:
            os.close(writing)
        process.stdout = stdout
        return process

    def close(self) -> None:
        for server in self:
            server.close()


def _kind(python: str, environment: Mapping[str, str]) -> object:
    """Return what processes that are forked from one server have in common."""
    fixed = {(n, text) for n, text in environment.items() if n not in fork_server.CHANGEABLE}
    return python, frozenset(fixed)
