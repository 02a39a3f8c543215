"""Check which peers of a task are reachable, and why others are not."""

import socket
import threading
import time
from dataclasses import dataclass

from phalanx.cluster.spec import Role, Task, split_address
from phalanx.cluster.tf_config import TFConfig
from phalanx.open_files import allow_more_open_files

_RETRY_SECONDS = 0.2
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class PeerReport:
    """The result of the attempts to reach one peer; `reason` is None if it answered."""

    task: Task
    address: str
    reason: str | None
    seconds: float

    def __str__(self) -> str:
        return f"{self.task} at {self.address}: {self.reason or 'answers'}"


def check_peers(
    config: TFConfig, *, timeout: float = 10.0, wait: bool = False, answers: bool = False
) -> list[PeerReport]:
    """Connect to every other task at the same time, and report on each within `timeout` seconds.

    With `wait`, retry a peer that does not answer until the time is up. With `answers`, a peer must
    also send something, or close the connection, as TensorFlow's servers and tasks that wait for
    their peers do: for a process that is stopped, the kernel accepts connections. Evaluators are
    not checked: no other task connects to them.
    """
    peers = [
        (task, config.cluster.addresses[task])
        for task in config.cluster.tasks()
        if task != config.task and task.role is not Role.EVALUATOR
    ]
    allow_more_open_files(len(peers) + 64)
    started = time.monotonic()
    deadline = started + timeout
    attempts = [_Attempt(address, deadline, wait, answers) for _, address in peers]
    done = threading.Semaphore(0)
    for attempt in attempts:
        # Daemon threads, because nothing can interrupt a name lookup that hangs.
        threading.Thread(target=attempt.run, args=(done,), daemon=True).start()
    for _ in attempts:
        if not done.acquire(timeout=max(0.0, deadline - time.monotonic())):
            break
    now = time.monotonic()
    return [
        PeerReport(task, address, attempt.outcome(), (attempt.finished or now) - started)
        for (task, address), attempt in zip(peers, attempts, strict=True)
    ]


@dataclass
class _Attempt:
    """The attempts to connect to one peer, in a thread."""

    address: str
    deadline: float
    wait: bool
    answers: bool
    reason: str | None = None
    finished: float | None = None
    doing: str = "resolving its name"

    def run(self, done: threading.Semaphore) -> None:
        self.reason = self._connect()
        while self.reason and self.wait and time.monotonic() + _RETRY_SECONDS < self.deadline:
            time.sleep(_RETRY_SECONDS)
            self.reason = self._connect()
        self.finished = time.monotonic()
        done.release()

    def outcome(self) -> str | None:
        """Return None if the peer answered, otherwise the failure of the last finished attempt."""
        return self.reason if self.finished else self.reason or self.timed_out()

    def timed_out(self) -> str:
        return f"timed out while {self.doing} (host down, or a firewall in between)"

    def _connect(self) -> str | None:
        host, port = split_address(self.address)
        self.doing = "resolving its name"
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return f"its name does not resolve ({getattr(error, 'strerror', None) or error})"
        self.doing = "connecting"
        reason = "its name has no address"
        for family, kind, protocol, _, address in found:
            try:
                # The kernel may not support the address family, as with IPv6 turned off.
                with socket.socket(family, kind, protocol) as connection:
                    connection.settimeout(max(0.001, self.deadline - time.monotonic()))
                    connection.connect(address)
                    return self._wait_for_answer(connection) if self.answers else None
            except ConnectionRefusedError:
                reason = "connection refused: no process listens there (not started yet, or ended)"
            except TimeoutError:
                reason = self.timed_out()
            except OSError as error:
                reason = error.strerror or str(error)
        return reason

    def _wait_for_answer(self, connection: socket.socket) -> str | None:
        # This is what the report says if the time is up before this attempt ends.
        self.reason = "accepts connections, but does not answer (stopped, or no task of this job)"
        left = self.deadline - time.monotonic()
        connection.settimeout(max(0.001, min(_ANSWER_SECONDS, left)))
        try:
            connection.recv(1)
        except TimeoutError:
            return self.reason
        except ConnectionError:
            # It was closed, which is an answer.
            pass
        return None
