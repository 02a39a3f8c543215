"""The process of one task: starts and ends as a process group, and is read without blocking."""

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from typing import Self

from phalanx.errors import JobError, LaunchError
from phalanx.launch.processes import guardian
from phalanx.launch.processes.forks import ForkServers, Process
from phalanx.launch.processes.plan import TaskPlan
from phalanx.launch.processes.progress_lines import ProgressLines
from phalanx.launch.processes.rotating_log import DEFAULT_LIMIT, RotatingLog
from phalanx.launch.termination import decode_exit_code

LAST_LINES = 20
_CHUNK_BYTES = 1 << 16
# A pipe holds no more than 1 MiB.
_MAX_CHUNKS = 16
# A process that is still there so long after SIGKILL never ends, as one of another user.
_KILL_SECONDS = 10.0


class TaskProcess:
    def __init__(self, plan: TaskPlan, process: Process, log: RotatingLog) -> None:
        self.plan = plan
        self.group = process.pid
        self.terminated_at: float | None = None
        self.last_output_at = time.monotonic()
        self._cleanup_started_at: float | None = None
        self._at_end = False
        assert process.stdout is not None
        self._process = process
        self._pipe = process.stdout
        self._log = log
        self._progress = ProgressLines(plan.progress_file) if plan.progress_file else None
        self._asked_to_kill_at: float | None = None
        self._partial = b""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @classmethod
    def start(
        cls,
        plan: TaskPlan,
        environ: Mapping[str, str],
        *,
        again: bool,
        log_limit: int = DEFAULT_LIMIT,
        servers: ForkServers | None = None,
    ) -> Self:
        """Start the task; with `again`, append to the log of its earlier start."""
        try:
            log = RotatingLog(plan.log, log_limit, again=again)
        except OSError as error:
            raise LaunchError(f"{plan.log} cannot be written: {error.strerror}") from None
        try:
            environment = plan.read_environment(environ)
            forked = servers and servers.fork(plan, environment)
            process: Process = forked or subprocess.Popen(
                plan.argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                bufsize=0,
            )
        except JobError:
            log.close()
            raise
        except OSError as error:
            log.close()
            raise JobError(f"{plan.argv[0]} cannot be started: {_explain(error)}") from None
        task = cls(plan, process, log)
        os.set_blocking(task.fileno(), False)
        return task

    def fileno(self) -> int:
        return self._pipe.fileno()

    def read(self) -> list[str] | None:
        """Return the lines since the last call; None at the end of the output."""
        try:
            chunk = os.read(self.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return []
        if not chunk:
            self._at_end = True
            return None
        self.last_output_at = time.monotonic()
        if self._progress is not None:
            chunk = self._progress.take(chunk)
        return self._take(chunk)

    def _take(self, chunk: bytes) -> list[str]:
        self._log.write(chunk)
        *whole, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > _CHUNK_BYTES:
            whole, self._partial = [*whole, self._partial], b""
        return self._decode(whole)

    def read_rest(self) -> list[str]:
        """Return what is left in the pipe of a process that has exited."""
        lines: list[str] = []
        # Limited, since its children may print faster than anybody reads.
        for _ in range(_MAX_CHUNKS):
            more = self.read()
            if more is None:
                break
            lines += more
        return lines

    def finish_reading(self) -> list[str]:
        """Return the rest with the last incomplete line, and close the log."""
        lines = self.read_rest()
        if self._progress is not None:
            lines += self._take(self._progress.take_rest())
        if self._partial:
            lines += self._decode([self._partial])
            self._partial = b""
        self._close()
        return lines

    def reap(self) -> None:
        """Reap a process that was killed, and close its files."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._close()

    def current_line(self) -> str:
        """Return the line without a newline, such as a progress bar."""
        return self._text(self._partial)

    def exit_code(self) -> int | None:
        """Return minus the signal's number if a signal ended the task; None while it runs."""
        code = self._process.poll()
        return decode_exit_code(code) if code is not None and self.plan.is_relay else code

    def is_gone(self) -> bool:
        """Return whether the process and all its children have ended."""
        if self.exit_code() is None or guardian.group_is_alive(self.group):
            return False
        # At the end of the pipe nothing is left that could have left the process group.
        return self._at_end or not self._children()

    def processes(self) -> set[int]:
        """Return the numbers of the task's processes: its own and all below it."""
        return {self.group, *self._children()}

    def end_children(self, now: float, grace: float) -> bool:
        """End the children of a process that has exited; return False if they cannot be ended."""
        if self._cleanup_started_at is None:
            self._cleanup_started_at = now
            self._signal_children(signal.SIGTERM)
        elif now >= self._cleanup_started_at + grace:
            self._signal_children(signal.SIGKILL)
        return now < self._cleanup_started_at + grace + _KILL_SECONDS

    def terminate(self, now: float) -> None:
        """Send SIGTERM to the process group, once."""
        if self.terminated_at is None:
            self.terminated_at = now
            guardian.signal_group(self.group, signal.SIGTERM)

    def kill(self) -> None:
        guardian.signal_group(self.group, signal.SIGKILL)

    def kill_task(self, now: float) -> None:
        """Kill the task, which may be on another host: its relay ends when it is dead.

        See `is_out_of_reach` for a relay that cannot reach it.
        """
        if self.plan.kill_signal is None:
            self.kill()
        elif self._asked_to_kill_at is None:
            self._asked_to_kill_at = now
            guardian.signal_group(self.group, self.plan.kill_signal)

    def is_out_of_reach(self, now: float) -> bool:
        """Whether the task should have been killed, and its relay does not say that it is dead."""
        asked_at = self._asked_to_kill_at
        return asked_at is not None and now >= asked_at + _KILL_SECONDS

    def _signal_children(self, number: int) -> None:
        guardian.signal_group(self.group, number)
        guardian.signal_all(self._children(), number)

    def _children(self) -> list[int]:
        environment = self.plan.environment
        return guardian.find_run_processes(
            environment[guardian.RUN_ID_VARIABLE], environment[guardian.TASK_VARIABLE]
        )

    def _close(self) -> None:
        self._pipe.close()
        self._log.close()

    def _decode(self, lines: list[bytes]) -> list[str]:
        """Decode the lines as a terminal shows them: with carriage returns, only the last state."""
        texts = [self._text(line) for line in lines]
        self.last_lines.extend(texts)
        return texts

    @staticmethod
    def _text(line: bytes) -> str:
        return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


def _explain(error: OSError) -> str:
    """Explain errors of exec that the system also raises for a script that exists."""
    if isinstance(error, FileNotFoundError):
        return "its first line (#!) names a program that does not exist"
    if error.errno == errno.ENOEXEC:
        return (
            "it is neither a program nor a script with a first line (#!) that names its interpreter"
        )
    return error.strerror or str(error)
