"""Stands for one try of one Swarm service: prints its output, and exits as its container does.

Swarm itself starts a service again on another try, on another node perhaps; whoever looks after the
job then starts this again, which takes the next try. Those taken already are in a file. SIGTERM
ends the service. Only the standard library is used.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 30.0
# Swarm waits a second before the next try, and longer if a node is lost.
_NEXT_TRY_SECONDS = 120.0
_LAST_WORDS_SECONDS = 1.0
_ENDS = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned", "remove"})


class Output:
    """The output of a try, while there is some."""

    def __init__(self, number: str) -> None:
        self._number = number
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Print what there is, and what will come."""
        if self._process is None:
            command = ["docker", "service", "logs", "--raw", "--follow", self._number]
            # In a group of its own: whoever wants the end asks the whole group of this process.
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
            )
            self._thread = threading.Thread(target=self._copy, daemon=True)
            self._thread.start()

    def _copy(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self._count += 1
            _print(line)

    def finish(self) -> None:
        """Docker goes on to follow a try that is over: take what is left, and end it."""
        self.start()
        time.sleep(_LAST_WORDS_SECONDS)
        self.end()
        lines = _docker("service", "logs", "--raw", self._number).splitlines(keepends=True)
        for line in lines[self._count :]:
            _print(line)

    def end(self) -> None:
        """Read no more."""
        if self._process is not None and self._thread is not None:
            self._process.terminate()
            self._thread.join(_ANSWER_SECONDS)
            self._process.wait(_ANSWER_SECONDS)


def follow(service: str, seen: Path) -> int:
    """Follow the service's next try; the exit code is its container's."""
    asked = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        asked.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    number = _next_try(service, seen, asked)
    if number is None:
        return 1
    output, said, scaled = Output(number), "", False
    status: dict[str, Any] = {"State": "new"}
    while True:
        if asked.is_set() and not scaled:
            done = _ask("service", "scale", "--detach", f"{service}=0")
            scaled = done is not None and done.returncode == 0
        status = _status(number) or status
        state = status["State"]
        if state in ("running", *_ENDS):
            output.start()
        elif status.get("Err", said) != said:
            said = status["Err"]
            print(f"phalanx: Swarm says {state}: {said}", flush=True)
        if state in _ENDS:
            output.finish()
            return _exit_code(state, status)
        if not scaled and status.get("Desired") == "shutdown" and _untaken(service, seen):
            # Nobody hears from its node any more, and Swarm has given it up.
            output.end()
            print(f"phalanx: the node of {service} is lost", flush=True)
            return 1
        if asked.is_set():
            time.sleep(_POLL_SECONDS)
        else:
            asked.wait(_POLL_SECONDS)


def _next_try(service: str, seen: Path, asked: threading.Event) -> str | None:
    """The newest try that was not taken before."""
    deadline = time.monotonic() + _NEXT_TRY_SECONDS
    while time.monotonic() < deadline and not asked.is_set():
        for number in _untaken(service, seen):
            with seen.open("a") as file:
                print(number, file=file)
            return number
        asked.wait(_POLL_SECONDS)
    if not asked.is_set():
        print(f"phalanx: Swarm has not started {service} again", flush=True)
    return None


def _untaken(service: str, seen: Path) -> list[str]:
    """The tries that were not taken yet, the newest first."""
    taken = seen.read_text().split() if seen.exists() else []
    found = _docker("service", "ps", "--quiet", "--no-trunc", service).decode().split()
    return [number for number in found if number not in taken]


def _status(number: str) -> dict[str, Any] | None:
    """What Swarm says of a try, which it may have forgotten; None if it does not answer now."""
    done = _ask("inspect", "--type=task", "--format={{json .}}", number)
    if done is not None and done.returncode == 0:
        found = json.loads(done.stdout)
        return {**found["Status"], "Desired": found["DesiredState"]}
    gone = done is not None and b"no such" in done.stderr.lower()
    return {"State": "remove"} if gone else None


def _exit_code(state: str, status: dict[str, Any]) -> int:
    if state == "complete":
        return 0
    code = (status.get("ContainerStatus") or {}).get("ExitCode") or 0
    if status.get("Err") and not code:
        print(f"phalanx: Swarm says {state}: {status['Err']}", flush=True)
    return int(code or 1)


def _docker(*arguments: str) -> bytes:
    """What docker prints; nothing if that cannot be had."""
    done = _ask(*arguments)
    return b"" if done is None else done.stdout


def _ask(*arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    """A manager that does not answer now may do so the next time."""
    try:
        return subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(follow(sys.argv[1], Path(sys.argv[2])))
