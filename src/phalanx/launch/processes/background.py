"""A supervisor in a background process, so that a job goes on when its launcher has returned.

The job's directory has status.json, result.json and the tasks' output. While it runs, the
supervisor holds a lock on the file `lock`, which contains its process id. It gets its plan from the
launcher through a pipe.
"""

import contextlib
import fcntl
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from phalanx.cluster.job_secret import with_secret
from phalanx.cluster.spec import Task
from phalanx.errors import LaunchError
from phalanx.launch.base import JobResult, TaskState, TaskStatus, poll
from phalanx.launch.log_files import read_log
from phalanx.launch.private_files import (
    make_private_directory,
    open_private,
    write_atomically,
)
from phalanx.launch.processes.handle import start
from phalanx.launch.processes.plan import ProcessPlan

_START_SECONDS = 30.0
_TICK_SECONDS = 0.2
_KILL_SECONDS = 5.0


@dataclass(frozen=True)
class BackgroundHandle:
    """A job whose supervisor is a background process, in the job's directory."""

    directory: Path

    @classmethod
    def submit(cls, plan: ProcessPlan, directory: Path) -> Self:
        """Start a supervisor for the plan, and wait until it has started the tasks."""
        try:
            make_private_directory(directory)
            for old in directory.glob("*.json"):
                old.unlink()
            process = _start_supervisor(directory, plan)
        except OSError as error:
            raise LaunchError(
                f"the job's state cannot be written to {directory}: {error.strerror}"
            ) from None
        deadline = time.monotonic() + _START_SECONDS
        try:
            while not (directory / "status.json").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    text = (directory / "supervisor.log").read_text(errors="replace").strip()
                    raise LaunchError(f"the job's supervisor did not start: {text or 'no answer'}")
                time.sleep(0.02)
        except BaseException:
            process.kill()
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_SECONDS)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        return cls(directory)

    def facts(self) -> dict[str, Any]:
        return {"directory": str(self.directory)}

    def membership_directory(self) -> Path:
        return self.directory

    def status(self) -> list[TaskStatus]:
        """Return every task as the supervisor last saw it."""
        try:
            entries = json.loads((self.directory / "status.json").read_text())
        except FileNotFoundError:
            raise LaunchError(f"{self.directory} with the job's state is gone") from None
        killed = self._is_over() and not (self.directory / "result.json").exists()
        statuses = [TaskStatus.load(entry) for entry in entries]
        return [replace(each, state=TaskState.ENDED) for each in statuses] if killed else statuses

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        yield from read_log(self.directory / f"{task}.log", self._is_over if follow else None)

    def cancel(self) -> None:
        """Send SIGTERM to the supervisor, which ends the job."""
        if not self._is_over():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int((self.directory / "lock").read_text()), signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> JobResult | None:
        return poll(self._result, timeout, _TICK_SECONDS)

    def _result(self) -> JobResult | None:
        if not self._is_over():
            return None
        try:
            return JobResult.load(json.loads((self.directory / "result.json").read_text()))
        except FileNotFoundError:
            return JobResult(1, "its supervisor was killed, and its tasks were ended with it")

    def _is_over(self) -> bool:
        try:
            with (self.directory / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        return True


class BackgroundLauncher:
    """The base class of launchers whose jobs have a background supervisor."""

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> BackgroundHandle:
        return BackgroundHandle(Path(facts["directory"]))


def _start_supervisor(directory: Path, plan: ProcessPlan) -> subprocess.Popen[bytes]:
    with open_private(directory / "supervisor.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    # A supervisor that has not begun to read has an error in its log.
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pickle.dump(plan, pipe)
    return process


def supervise(plan: ProcessPlan, directory: Path) -> None:
    """Run the plan to its end, and write its state to the directory."""
    with open_private(directory / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.write(f"{os.getpid()}\n".encode())
        lock.flush()
        signals: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        handle = start(plan, with_secret(os.environ))
        written = None
        while True:
            result = handle.wait(_TICK_SECONDS)
            while signals:
                signals.pop()
                handle.cancel()
            statuses = handle.status()
            if statuses != written:
                _write_json(directory / "status.json", [each.dump() for each in statuses])
                written = statuses
            if result is not None:
                _write_json(directory / "result.json", result.dump())
                return


def _write_json(path: Path, content: object) -> None:
    write_atomically(path, json.dumps(content, default=str).encode())


if __name__ == "__main__":
    supervise(pickle.load(sys.stdin.buffer), Path(sys.argv[1]))
