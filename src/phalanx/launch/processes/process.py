"""One task's process: started in a group of its own, read without blocking, ended as a group."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from typing import IO

from phalanx.errors import JobError, LaunchError
from phalanx.launch.processes.guardian import (
    MARK,
    TASK_MARK,
    group_is_alive,
    marked_processes,
    signal_all,
    signal_group,
)
from phalanx.launch.processes.plan import TaskPlan

LAST_LINES = 20
_CHUNK = 1 << 16
# A pipe holds no more than 1 MiB.
_MOST_CHUNKS = 16
# Longer than this after SIGKILL is for ever, as with a process of another user.
_MOST_SECONDS_DYING = 10.0


class TaskProcess:
    """A running task and its output."""

    def __init__(self, plan: TaskPlan, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.plan = plan
        self.group = process.pid
        self.terminated_at: float | None = None
        self._left_at: float | None = None
        self._at_end = False
        self._process = process
        self._log = log
        self._partial = b""
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @classmethod
    def start(cls, plan: TaskPlan, environ: Mapping[str, str], *, again: bool) -> TaskProcess:
        """Start the task; `again` adds to the log of its earlier start instead of replacing it."""
        try:
            log = plan.log.open("ab" if again else "wb", buffering=0)
        except OSError as error:
            raise LaunchError(f"{plan.log} cannot be written: {error.strerror}") from None
        try:
            process = subprocess.Popen(
                plan.argv,
                env={**environ, **plan.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                bufsize=0,
            )
        except OSError as error:
            log.close()
            raise JobError(f"{plan.argv[0]} cannot be started: {_explain(error)}") from None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return cls(plan, process, log)

    def fileno(self) -> int:
        """The end of the pipe that its output comes from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> list[str] | None:
        """The lines that have come since the last time; None at the end of the output."""
        try:
            chunk = os.read(self.fileno(), _CHUNK)
        except BlockingIOError:
            return []
        if not chunk:
            self._at_end = True
            return None
        # A full disk must not take the job with it: the output still reaches the screen.
        with contextlib.suppress(OSError):
            self._log.write(chunk)
        *whole, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > _CHUNK:
            whole, self._partial = [*whole, self._partial], b""
        return self._decode(whole)

    def read_rest(self) -> list[str]:
        """What a process that is gone has left in its pipe.

        There is an end to it: what the process has started may print faster than anybody reads.
        """
        lines: list[str] = []
        for _ in range(_MOST_CHUNKS):
            more = self.read()
            if more is None:
                break
            lines += more
        return lines

    def finish_reading(self) -> list[str]:
        """The same, and the line without an end too; closes the log."""
        lines = self.read_rest()
        if self._partial:
            lines += self._decode([self._partial])
            self._partial = b""
        self._close()
        return lines

    def reap(self) -> None:
        """Take leave of a process that was killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._close()

    def current_line(self) -> str:
        """The line that has no end yet, such as a progress bar."""
        return self._text(self._partial)

    def last_lines(self) -> tuple[str, ...]:
        """The end of its output."""
        return tuple(self._last_lines)

    def exit_code(self) -> int | None:
        """None while the process runs."""
        return self._process.poll()

    def is_gone(self) -> bool:
        """Whether the process is gone, and all it has started.

        What left its group is found by its mark; it is looked for only if somebody still holds the
        other end of the pipe.
        """
        if self.exit_code() is None or group_is_alive(self.group):
            return False
        return self._at_end or not self._strays()

    def end_rest(self, now: float, grace: float) -> bool:
        """End what the process has left behind; False if that proves impossible."""
        if self._left_at is None:
            self._left_at = now
            signal_group(self.group, signal.SIGTERM)
            signal_all(self._strays(), signal.SIGTERM)
        elif now >= self._left_at + grace:
            signal_group(self.group, signal.SIGKILL)
            signal_all(self._strays(), signal.SIGKILL)
        return now < self._left_at + grace + _MOST_SECONDS_DYING

    def terminate(self, now: float) -> None:
        """Ask the whole group to end, once."""
        if self.terminated_at is None:
            self.terminated_at = now
            signal_group(self.group, signal.SIGTERM)

    def kill(self) -> None:
        """End the whole group."""
        signal_group(self.group, signal.SIGKILL)

    def _strays(self) -> list[int]:
        environment = self.plan.environment
        return marked_processes(environment[MARK], environment[TASK_MARK])

    def _close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _decode(self, lines: list[bytes]) -> list[str]:
        """Text as a terminal would leave it: of a line that rewrites itself, the last state."""
        texts = [self._text(line) for line in lines]
        self._last_lines.extend(texts)
        return texts

    @staticmethod
    def _text(line: bytes) -> str:
        return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


def _explain(error: OSError) -> str:
    """The system says «no such file» of a script that is there too."""
    if isinstance(error, FileNotFoundError):
        return "its first line (#!) names a program that is not there"
    if error.errno == errno.ENOEXEC:
        return "it is neither a program nor a script with a first line (#!) that says what runs it"
    return error.strerror or str(error)
