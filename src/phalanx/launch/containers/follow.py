"""Follows one container or one Swarm service: prints its output and exits with its exit code.

    python -I follow.py container NAME GRACE_SECONDS
    python -I follow.py service NAME SEEN_FILE

The supervisor of a job starts this script in place of the task. SIGTERM ends the container or the
service. The script uses the standard library only.

A container is started first. `docker start --attach` would do the same in one command, but it
returns on SIGTERM at once, and the last output of the container is lost.

Swarm restarts a failed service by itself, as a new Swarm task that may run on another node. The
script follows one Swarm task; when the supervisor starts it again, it follows the next one.
SEEN_FILE lists the Swarm tasks that were followed before.
"""

from __future__ import annotations

import contextlib
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
_RESPONSE_SECONDS = 30.0
_INSPECT_SECONDS = 60.0
_START_SECONDS = 300.0
_RETRY_SECONDS = 1.0
# Swarm waits a second before it restarts a service, and longer if a node is lost.
_RESTART_SECONDS = 120.0
_LAST_OUTPUT_SECONDS = 1.0
_END_STATES = frozenset({"complete", "failed", "rejected", "shutdown", "orphaned", "remove"})


def follow_container(container: str, grace: str) -> int:
    """Start the container and follow it to its end."""
    stops: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        command = ["docker", "stop", "-t", grace, container]
        stops.append(_start(command, stdout=subprocess.DEVNULL))

    try:
        if _start(["docker", "start", container], stdout=subprocess.DEVNULL).wait(_START_SECONDS):
            return 1
    except subprocess.TimeoutExpired:
        print(f"phalanx: docker has not started it within {_START_SECONDS:.0f} s", flush=True)
        return 1
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # The output of an earlier start was printed already.
    since = _inspect(container, "{{.State.StartedAt}}")
    while True:
        _start(["docker", "logs", "--follow", "--since", since, container]).wait()
        running, _, code = _inspect(container, "{{.State.Running}} {{.State.ExitCode}}").partition(
            " "
        )
        if running != "true":
            break
        # The engine closed the connection, but the container still runs.
        since = f"{time.time():.3f}"
        time.sleep(_RETRY_SECONDS)
    for each in stops:
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.wait(float(grace) + _INSPECT_SECONDS)
    return int(code or 1)


def _inspect(container: str, template: str) -> str:
    done = _run_docker("inspect", "--format", template, container, seconds=_INSPECT_SECONDS)
    if done is None:
        print(f"phalanx: docker did not respond within {_INSPECT_SECONDS:.0f} s", flush=True)
        return ""
    _print(done.stderr)
    return done.stdout.decode().strip()


class ServiceLog:
    """Prints the output of a Swarm task while it runs."""

    def __init__(self, swarm_task: str) -> None:
        self._swarm_task = swarm_task
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._process is None:
            command = ["docker", "service", "logs", "--raw", "--follow", self._swarm_task]
            self._process = _start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self._thread = threading.Thread(target=self._copy, daemon=True)
            self._thread.start()

    def _copy(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self._count += 1
            _print(line)

    def finish(self) -> None:
        """Print the rest. `docker service logs` does not return when the Swarm task has ended."""
        self.start()
        time.sleep(_LAST_OUTPUT_SECONDS)
        self.stop()
        lines = _read_docker("service", "logs", "--raw", self._swarm_task)
        for line in lines.splitlines(keepends=True)[self._count :]:
            _print(line)

    def stop(self) -> None:
        if self._process is not None and self._thread is not None:
            self._process.terminate()
            self._thread.join(_RESPONSE_SECONDS)
            self._process.wait(_RESPONSE_SECONDS)


def follow_service(service: str, seen: Path) -> int:
    """Follow the service's next Swarm task to its end."""
    end_requested = threading.Event()

    def request_end(number: int, frame: FrameType | None) -> None:
        end_requested.set()

    signal.signal(signal.SIGTERM, request_end)
    signal.signal(signal.SIGINT, request_end)
    swarm_task = _wait_for_swarm_task(service, seen, end_requested)
    if swarm_task is None:
        return 1
    log, message, scaled = ServiceLog(swarm_task), "", False
    status: dict[str, Any] = {"State": "new"}
    while True:
        if end_requested.is_set() and not scaled:
            done = _run_docker("service", "scale", "--detach", f"{service}=0")
            scaled = done is not None and done.returncode == 0
        status = _read_status(swarm_task) or status
        state = status["State"]
        if state in ("running", *_END_STATES):
            log.start()
        elif status.get("Err", message) != message:
            message = status["Err"]
            print(f"phalanx: Swarm reports {state}: {message}", flush=True)
        if state in _END_STATES:
            log.finish()
            return _get_exit_code(state, status)
        if not scaled and status.get("Desired") == "shutdown" and _list_unseen(service, seen):
            # The node stopped responding, and Swarm has replaced its task.
            log.stop()
            print(f"phalanx: the node of {service} is lost", flush=True)
            return 1
        if end_requested.is_set():
            time.sleep(_POLL_SECONDS)
        else:
            end_requested.wait(_POLL_SECONDS)


def _wait_for_swarm_task(service: str, seen: Path, end_requested: threading.Event) -> str | None:
    deadline = time.monotonic() + _RESTART_SECONDS
    while time.monotonic() < deadline and not end_requested.is_set():
        for swarm_task in _list_unseen(service, seen):
            with seen.open("a") as file:
                print(swarm_task, file=file)
            return swarm_task
        end_requested.wait(_POLL_SECONDS)
    if not end_requested.is_set():
        print(f"phalanx: Swarm has not restarted {service}", flush=True)
    return None


def _list_unseen(service: str, seen: Path) -> list[str]:
    """The Swarm tasks that were not followed yet, the newest first."""
    known = seen.read_text().split() if seen.exists() else []
    found = _read_docker("service", "ps", "--quiet", "--no-trunc", service).decode().split()
    return [swarm_task for swarm_task in found if swarm_task not in known]


def _read_status(swarm_task: str) -> dict[str, Any] | None:
    """The state of a Swarm task, which Swarm may have removed; None without a response."""
    done = _run_docker("inspect", "--type=task", "--format={{json .}}", swarm_task)
    if done is not None and done.returncode == 0:
        found = json.loads(done.stdout)
        return {**found["Status"], "Desired": found["DesiredState"]}
    removed = done is not None and b"no such" in done.stderr.lower()
    return {"State": "remove"} if removed else None


def _get_exit_code(state: str, status: dict[str, Any]) -> int:
    if state == "complete":
        return 0
    code: int = (status.get("ContainerStatus") or {}).get("ExitCode") or 0
    if status.get("Err") and not code:
        print(f"phalanx: Swarm reports {state}: {status['Err']}", flush=True)
    return code or 1


def _start(
    command: list[str], stdout: int | None = None, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, which signals to this group do not reach."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, process_group=0
    )


def _run_docker(
    *arguments: str, seconds: float = _RESPONSE_SECONDS
) -> subprocess.CompletedProcess[bytes] | None:
    """Run docker; None if it does not respond, which it may do the next time."""
    try:
        return subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _read_docker(*arguments: str) -> bytes:
    done = _run_docker(*arguments)
    return b"" if done is None else done.stdout


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.flush()


if __name__ == "__main__":
    _, kind, name, argument = sys.argv
    if kind == "container":
        sys.exit(follow_container(name, argument))
    else:
        sys.exit(follow_service(name, Path(argument)))
