"""Sees to it that no task outlives its launcher, even one that was killed with SIGKILL.

The launcher starts this file as a process of its own, in a session of its own, and tells it through
a pipe which process groups there are: `+123` and `-123`, and with what command to tidy up after
them: `!["rm", "x"]`. The end of the pipe without a `done` means
that the launcher is dead. Only the standard library is used, so that it starts at once.
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

MARK = "PHALANX_RUN_ID"
TASK_MARK = "PHALANX_TASK"
_MOST_SECONDS = 5.0
_TIDY_SECONDS = 60.0


@contextlib.contextmanager
def guarded(run_id: str, grace: float) -> Iterator[Callable[[str], None]]:
    """Keep a guardian beside a run; what is given is the way to tell it something."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, run_id, str(min(grace, _MOST_SECONDS))],
        # Inside a task of another run it must not be taken for a part of that.
        env={name: text for name, text in os.environ.items() if name != MARK},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert process.stdin is not None
    pipe = process.stdin

    def tell(message: str) -> None:
        with contextlib.suppress(OSError):
            print(message, file=pipe, flush=True)

    try:
        yield tell
    finally:
        tell("done")
        with contextlib.suppress(OSError):
            pipe.close()
        try:
            process.wait(_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def signal_group(group: int, number: int) -> None:
    """Send a signal to every process of a group that is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def group_is_alive(group: int) -> bool:
    """Whether a process of the group still runs; one that nobody has reaped does not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    states = [state for _, of_group, state in _processes() if of_group == group]
    return any(state != "Z" for state in states) if states else sys.platform != "linux"


def marked_processes(run_id: str, task: str | None = None) -> list[int]:
    """Processes of a run, or of one of its tasks, wherever they went: their environment is marked.

    Linux only: elsewhere there are none to be found.
    """
    marks = {f"{MARK}={run_id}".encode()}
    if task is not None:
        marks.add(f"{TASK_MARK}={task}".encode())
    found = []
    for pid, _, state in _processes():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if state != "Z" and marks.issubset(environment) and pid != os.getpid():
                found.append(pid)
    return found


def end_strays(run_id: str, grace: float, task: str | None = None) -> None:
    """End what is left of a run: SIGTERM, and after the grace period SIGKILL."""
    started = time.monotonic()
    # What they start in order to end well, as to save, is not asked to end.
    signal_all(marked_processes(run_id, task), signal.SIGTERM if grace else signal.SIGKILL)
    while (pids := marked_processes(run_id, task)) and time.monotonic() < started + grace:
        time.sleep(0.02)
    while pids and time.monotonic() < started + grace + _MOST_SECONDS:
        # One that starts others must be met again and again.
        signal_all(pids, signal.SIGKILL)
        pids = marked_processes(run_id, task)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each of these processes that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _processes() -> Iterator[tuple[int, int, str]]:
    """Number, group and state of every process, as far as the system tells."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield int(entry.name), int(fields[2]), fields[0]


def guard(messages: Iterable[str], run_id: str, grace: float) -> None:
    """Follow the launcher's messages; if they stop without `done`, end every group."""
    groups: set[int] = set()
    cleanup: list[list[str]] = []
    for message in messages:
        if message.startswith("done"):
            return
        if message.startswith("!"):
            cleanup.append(json.loads(message[1:]))
            continue
        number = int(message[1:])
        (groups.add if message[0] == "+" else groups.discard)(number)
    for group in groups:
        signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(map(group_is_alive, groups)):
        time.sleep(0.05)
    for group in groups:
        signal_group(group, signal.SIGKILL)
    end_strays(run_id, grace=0)
    tidy_up(cleanup)


def tidy_up(commands: Iterable[Sequence[str]]) -> None:
    """Run the commands, each within a limit. That there is nothing to remove is no error."""
    for command in commands:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIDY_SECONDS,
                check=False,
            )


if __name__ == "__main__":
    guard(sys.stdin, sys.argv[1], float(sys.argv[2]))
