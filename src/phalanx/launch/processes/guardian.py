"""A process that ends the tasks of a run if their supervisor dies, even by SIGKILL.

The supervisor starts this file as a process in a session of its own, and sends it messages through
a pipe: `+123` and `-123` when a process group starts and ends, and `!["rm", "x"]` for a command
that cleans up after the run. A pipe that ends without `done` means that the supervisor is dead.
Only the standard library is used, so that the guardian starts at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

RUN_ID_VARIABLE = "PHALANX_RUN_ID"
TASK_VARIABLE = "PHALANX_TASK"
_MAX_GRACE_SECONDS = 5.0
_KILL_SECONDS = 5.0
_EXIT_SECONDS = 5.0
_CLEANUP_SECONDS = 60.0


@contextlib.contextmanager
def start_guardian(run_id: str, grace: float) -> Iterator[Callable[[str], None]]:
    """Run a guardian beside a run; the context is the function that sends it a message."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, run_id, str(min(grace, _MAX_GRACE_SECONDS))],
        # Inside a task of another run the guardian must not count as a process of that run.
        env={name: text for name, text in os.environ.items() if name != RUN_ID_VARIABLE},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert process.stdin is not None
    pipe = process.stdin

    def send(message: str) -> None:
        with contextlib.suppress(OSError):
            print(message, file=pipe, flush=True)

    try:
        yield send
    finally:
        send("done")
        with contextlib.suppress(OSError):
            pipe.close()
        try:
            process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_SECONDS)


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def group_is_alive(group: int) -> bool:
    """Return whether a process of the group still runs; a zombie does not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    states = [state for _, of_group, state in list_processes() if of_group == group]
    return any(state != "Z" for state in states) if states else sys.platform != "linux"


def find_run_processes(run_id: str, task: str | None = None) -> list[int]:
    """Find the processes of a run, or of one of its tasks, by their environment.

    Also finds processes that have left their process group. Linux only: elsewhere none is found.
    """
    variables = {f"{RUN_ID_VARIABLE}={run_id}".encode()}
    if task is not None:
        variables.add(f"{TASK_VARIABLE}={task}".encode())
    found = []
    for pid, _, state in list_processes():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if state != "Z" and variables.issubset(environment) and pid != os.getpid():
                found.append(pid)
    return found


def end_run_processes(run_id: str, grace: float, task: str | None = None) -> None:
    """End the remaining processes of a run: SIGTERM, and after the grace period SIGKILL."""
    started = time.monotonic()
    # Only once: processes that they start in order to end well, as to save, get no SIGTERM.
    signal_all(find_run_processes(run_id, task), signal.SIGTERM if grace else signal.SIGKILL)
    while (pids := find_run_processes(run_id, task)) and time.monotonic() < started + grace:
        time.sleep(0.02)
    while pids and time.monotonic() < started + grace + _KILL_SECONDS:
        # Repeated, because a process may start others until it is killed.
        signal_all(pids, signal.SIGKILL)
        pids = find_run_processes(run_id, task)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to those of these processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def list_processes() -> Iterator[tuple[int, int, str]]:
    """Yield id, group and state of every process in /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield int(entry.name), int(fields[2]), fields[0]


def guard(messages: Iterable[str], run_id: str, grace: float) -> None:
    """Follow the supervisor's messages; if they end without `done`, end every group."""
    groups: set[int] = set()
    cleanup: list[list[str]] = []
    for message in messages:
        if message.startswith("done"):
            return
        if message.startswith("!"):
            cleanup.append(json.loads(message[1:]))
            continue
        group = int(message[1:])
        (groups.add if message[0] == "+" else groups.discard)(group)
    for group in groups:
        signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(map(group_is_alive, groups)):
        time.sleep(0.05)
    for group in groups:
        signal_group(group, signal.SIGKILL)
    end_run_processes(run_id, grace=0)
    run_cleanup(cleanup)


def run_cleanup(commands: Iterable[Sequence[str]]) -> None:
    """Run the commands, each with a time limit; a command that fails is no error."""
    for command in commands:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_CLEANUP_SECONDS,
                check=False,
            )


if __name__ == "__main__":
    guard(sys.stdin, sys.argv[1], float(sys.argv[2]))
