"""Stands here for one task in the cluster: prints what it prints, and ends as it does.

    python -m phalanx.launch.backends.marathon.relay http://marathon:8080 5051 /digits/worker-1 SEEN

SIGTERM removes the app. SEEN is a file that remembers which failure was told of: Marathon starts
the task again by itself, and the supervisor starts the relay again to see how that goes.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from phalanx.errors import LaunchError, NotFoundError
from phalanx.launch.backends.marathon.api import Marathon, read_sandbox
from phalanx.launch.termination import decode_exit_code

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 300.0


class Relay:
    """One app, followed."""

    def __init__(self, marathon: Marathon, agent_port: int, name: str, seen: Path) -> None:
        self._marathon = marathon
        self._agent_port = agent_port
        self._name = name
        self._seen = seen
        self._framework = ""
        self._agent, self._task, self._place = "", "", 0
        self._waits_for = ""
        self._ending = False

    def end(self, number: int, frame: FrameType | None) -> None:
        """Remove the app; the loop sees it go."""
        self._ending = True

    def run(self) -> int:
        """Until the task is done, has failed, or is gone; the exit code is the task's."""
        asked = False
        answered = time.monotonic()
        while True:
            try:
                if self._ending and not asked:
                    asked = True
                    self._marathon.delete_app(self._name)
                self._framework = self._framework or self._marathon.framework()
                code = self._look(self._marathon.app(self._name))
                answered = time.monotonic()
            except NotFoundError:
                self._read()
                return 1
            except LaunchError as error:
                code = None
                if time.monotonic() > answered + _PATIENCE_SECONDS:
                    print(f"phalanx: {error}", flush=True)
                    return 1
            if code is not None:
                return code
            time.sleep(_POLL_SECONDS)

    def _look(self, app: dict[str, Any]) -> int | None:
        """The exit code, if this says that the task has ended."""
        failure = app.get("lastTaskFailure") or {}
        if failure.get("state") == "TASK_FAILED" and failure["taskId"] != self._told():
            self._turn_to(failure["taskId"], failure["host"])
            self._seen.write_text(failure["taskId"])
            print(f"phalanx: Marathon says: {failure.get('message')}", flush=True)
            return parse_exit(str(failure.get("message")))
        tasks = app.get("tasks") or []
        if not tasks:
            self._say_why_it_waits()
            return None
        newest = max(tasks, key=lambda task: str(task.get("stagedAt") or ""))
        self._turn_to(newest["id"], newest["host"])
        done = any(each.get("alive") is False for each in newest.get("healthCheckResults") or [])
        return 0 if done else None

    def _turn_to(self, task: str, host: str) -> None:
        """Read from this task's sandbox, after what is left in the one before."""
        if task != self._task:
            self._read()
            self._task, self._place = task, 0
            self._agent = f"http://{host}:{self._agent_port}"
        self._read()

    def _told(self) -> str:
        return self._seen.read_text() if self._seen.exists() else ""

    def _say_why_it_waits(self) -> None:
        reason = self._marathon.why_it_waits(self._name)
        if reason and reason != self._waits_for:
            print(f"phalanx: Marathon waits: {reason}", flush=True)
        self._waits_for = reason

    def _read(self) -> None:
        """Print what is new in the task's sandbox; who cannot read there still learns the rest."""
        with contextlib.suppress(LaunchError):
            while self._task and self._framework:
                new = read_sandbox(self._agent, self._framework, self._task, self._place)
                if not new:
                    return
                self._place += len(new.encode())
                sys.stdout.write(new)
                sys.stdout.flush()


def parse_exit(message: str) -> int:
    """The exit code in Mesos' words; minus the signal's number if one ended the task.

    >>> parse_exit("Command exited with status 3"), parse_exit("Command terminated with signal 9")
    (3, -9)
    >>> parse_exit("Command exited with status 137")
    -9
    """
    match = re.search(r"(status|signal) (\d+)", message)
    if not match or not int(match[2]):
        return 1
    number = int(match[2])
    if match[1] == "signal":
        return -number
    return decode_exit_code(number)


if __name__ == "__main__":
    url, port, app, remembered = sys.argv[1:]
    relay = Relay(Marathon.of_user(url), int(port), app, Path(remembered))
    signal.signal(signal.SIGTERM, relay.end)
    code = relay.run()
    sys.exit(code if code >= 0 else 128 - code)
