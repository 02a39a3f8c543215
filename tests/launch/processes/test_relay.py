"""How a relay ends a task on another host: here, of a shell on this one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from phalanx.launch.processes import relay
from phalanx.launch.processes.stdin_guard import guard_stdin

# It ignores SIGTERM.
STUBBORN = "trap 'echo asked' TERM; echo up; while true; do sleep 0.1; done"


@pytest.mark.parametrize(
    ("number", "grace", "asked"),
    [(relay.KILL_SIGNAL, 600.0, False), (signal.SIGTERM, 1.0, True)],
)
def test_task_is_killed_at_once_or_after_its_grace_period(
    number: signal.Signals, grace: float, asked: bool
) -> None:
    command = [*relay.READ_VARIABLES, *guard_stdin("/", grace), "sh", "-c", STUBBORN]
    with subprocess.Popen(
        [sys.executable, "-I", str(relay.__file__), *command],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        # A shell says 128 + n of a command that signal n has ended.
        assert process.returncode == 128 + signal.SIGKILL
        assert not asked or output == "asked\n"
