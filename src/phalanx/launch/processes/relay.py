"""Runs the `ssh` or `srun` of one task, and sends it variables and signals over its input.

If `ssh` itself were ended, the task would keep running on the remote host. On SIGTERM the relay
closes the input: the task gets SIGTERM and time to save, and `ssh` returns when it has ended. On
KILL_SIGNAL it sends a line first, so that the task is killed at once. The input also ends if the
relay is killed. The relay uses the standard library only.

Variables that may be secrets are the first lines of that input, because the command lines of both
hosts are visible to all their users. The relay gets them in its own environment, with a prefix.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import FrameType
from typing import IO

KILL_SIGNAL = signal.SIGUSR1
_PREFIX = "PHALANX_SEND_"
# Reads a line for each variable up to an empty line, and executes the rest of its arguments.
_READ = """\
nl='
'
while IFS= read -r line && [ -n "$line" ]; do eval "$line"; done
exec "$@\""""
READ_VARIABLES = ("sh", "-c", _READ, "phalanx")


def mark(variables: Mapping[str, str]) -> dict[str, str]:
    """Add the prefix, so that the variables concern neither the relay nor `ssh`."""
    return {_PREFIX + name: text for name, text in variables.items()}


def unmark(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have the prefix, without it."""
    return {
        name.removeprefix(_PREFIX): text
        for name, text in environ.items()
        if name.startswith(_PREFIX)
    }


def make_lines(environ: Mapping[str, str]) -> list[str]:
    """Return the line of each variable that is sent, as the remote shell evaluates it."""
    return [
        f"export {name}=" + '"$nl"'.join(map(shlex.quote, text.split("\n")))
        for name, text in unmark(environ).items()
    ]


def relay(command: list[str]) -> int:
    """Run a command; return the task's exit code, or 128 + n if signal n has ended one of them."""
    # `srun` would hand them to the task under these names, too.
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_PREFIX)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0, env=kept)
    assert process.stdin is not None
    pipe = process.stdin

    def end(number: int, frame: FrameType | None) -> None:
        if number == KILL_SIGNAL:
            _send(pipe, "kill\n")
        pipe.close()

    for number in (signal.SIGTERM, signal.SIGINT, KILL_SIGNAL):
        signal.signal(number, end)
    # The secret of the job is in no plan: the supervisor makes it.
    secret = {name: os.environ[name] for name in ("PHALANX_SECRET",) if name in os.environ}
    lines = make_lines({**mark(secret), **os.environ})
    _send(pipe, "".join(f"{line}\n" for line in [*lines, ""]))
    code = process.wait()
    return code if code >= 0 else 128 - code


def _send(pipe: IO[bytes], text: str) -> None:
    """Write the text without a buffer, unless the command has ended or the pipe is closed."""
    data = os.fsencode(text)
    with contextlib.suppress(OSError, ValueError):
        while data:
            data = data[os.write(pipe.fileno(), data) :]


if __name__ == "__main__":
    sys.exit(relay(sys.argv[1:]))
