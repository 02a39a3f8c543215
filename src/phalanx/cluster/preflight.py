"""Is every peer reachable? If not, which one, and why?"""

from __future__ import annotations

import queue
import socket
import threading
import time
from dataclasses import dataclass

from phalanx.cluster.spec import Role, Task, split_address
from phalanx.cluster.tf_config import TFConfig
from phalanx.limits import allow_open_files

_RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class PeerReport:
    """What became of the attempt to reach one peer; `reason` is None if it answered."""

    task: Task
    address: str
    reason: str | None
    seconds: float

    def __str__(self) -> str:
        return f"{self.task} at {self.address}: {self.reason or 'answers'}"


def check_peers(config: TFConfig, *, timeout: float = 10.0, wait: bool = False) -> list[PeerReport]:
    """Connect to every other task at once and report on each, within `timeout` seconds in all.

    With `wait`, a peer that does not answer yet is tried again until the time is up. Evaluators
    have no address that others need, so they are left out.
    """
    peers = [
        (task, config.cluster.addresses[task])
        for task in config.cluster.tasks()
        if task != config.task and task.role is not Role.EVALUATOR
    ]
    allow_open_files(len(peers) + 64)
    started = time.monotonic()
    attempts = [_Attempt(address, started + timeout, wait) for _, address in peers]
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number, attempt in enumerate(attempts):
        # Daemons, since nothing can end a name look-up that hangs.
        threading.Thread(target=attempt.run, args=(done, number), daemon=True).start()
    reasons: dict[int, str | None] = {}
    while len(reasons) < len(attempts) and (left := started + timeout - time.monotonic()) > 0:
        try:
            number = done.get(timeout=left)
        except queue.Empty:
            break
        reasons[number] = attempts[number].reason
    return [
        PeerReport(
            task,
            address,
            reasons[number] if number in reasons else attempt.timed_out(),
            (attempt.finished or time.monotonic()) - started,
        )
        for number, ((task, address), attempt) in enumerate(zip(peers, attempts, strict=True))
    ]


class _Attempt:
    """One peer's attempts, run in a thread of its own."""

    def __init__(self, address: str, deadline: float, wait: bool) -> None:
        self.address = address
        self.deadline = deadline
        self.wait = wait
        self.reason: str | None = None
        self.finished: float | None = None
        self._doing = "looking up its name"

    def run(self, done: queue.SimpleQueue[int], number: int) -> None:
        self.reason = self._connect()
        while self.reason and self.wait and time.monotonic() + _RETRY_SECONDS < self.deadline:
            time.sleep(_RETRY_SECONDS)
            self.reason = self._connect()
        self.finished = time.monotonic()
        done.put(number)

    def timed_out(self) -> str:
        return f"timed out while {self._doing} (host down, or a firewall between)"

    def _connect(self) -> str | None:
        host, port = split_address(self.address)
        self._doing = "looking up its name"
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return f"its name does not resolve ({getattr(error, 'strerror', None) or error})"
        self._doing = "connecting"
        reason = "its name has no address"
        for family, kind, protocol, _, address in found:
            try:
                # The kernel may lack the family of an address that the name has.
                with socket.socket(family, kind, protocol) as connection:
                    connection.settimeout(max(0.001, self.deadline - time.monotonic()))
                    connection.connect(address)
                return None
            except ConnectionRefusedError:
                reason = "connection refused: nothing listens there (not started yet, or gone)"
            except TimeoutError:
                reason = self.timed_out()
            except OSError as error:
                reason = error.strerror or str(error)
        return reason
