"""Follows one task in the cluster: prints its output and exits with its exit code.

    python -m phalanx.launch.backends.marathon.relay http://marathon:8080 5051 /digits/worker-1 SEEN

SIGTERM removes the app. Marathon restarts a failed task by itself, and the supervisor restarts the
relay to follow it. The file SEEN has the failure that was reported last.
"""

import contextlib
import re
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from phalanx.errors import LaunchError, NotFoundError
from phalanx.launch.backends.marathon.api import MarathonClient, read_sandbox
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.termination import decode_exit_code

_POLL_SECONDS = 1.0
_OUTAGE_SECONDS = 300.0


class AppRelay:
    def __init__(self, marathon: MarathonClient, agent_port: int, name: str, seen: Path) -> None:
        self._marathon = marathon
        self._agent_port = agent_port
        self._name = name
        self._seen = seen
        self._framework = ""
        self._agent, self._task, self._offset = "", "", 0
        self._wait_reason = ""
        self._ending = False

    def end(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: `run` removes the app and waits until it is gone."""
        self._ending = True

    def run(self) -> int:
        """Follow the task until it succeeds, fails or is gone, and return its exit code."""
        deleted = False
        answered = time.monotonic()
        while True:
            try:
                if self._ending and not deleted:
                    deleted = True
                    self._marathon.delete_app(self._name)
                self._framework = self._framework or self._marathon.read_framework_id()
                code = self._check_app(self._marathon.read_app(self._name))
                answered = time.monotonic()
            except NotFoundError:
                self._read()
                return 1
            except LaunchError as error:
                code = None
                if time.monotonic() > answered + _OUTAGE_SECONDS:
                    print(f"phalanx: {error}", flush=True)
                    return 1
            if code is not None:
                return code
            time.sleep(_POLL_SECONDS)

    def _check_app(self, app: Manifest) -> int | None:
        """Return the exit code if the task has ended."""
        failure = app.get("lastTaskFailure") or {}
        seen = self._seen.read_text() if self._seen.exists() else ""
        if failure.get("state") == "TASK_FAILED" and failure["taskId"] != seen:
            self._switch_to(failure["taskId"], failure["host"])
            self._seen.write_text(failure["taskId"])
            print(f"phalanx: Marathon reports: {failure.get('message')}", flush=True)
            return parse_exit(str(failure.get("message")))
        tasks = app.get("tasks") or []
        if not tasks:
            self._print_wait_reason()
            return None
        newest = max(tasks, key=lambda task: str(task.get("stagedAt") or ""))
        self._switch_to(newest["id"], newest["host"])
        succeeded = any(
            each.get("alive") is False for each in newest.get("healthCheckResults") or []
        )
        return 0 if succeeded else None

    def _switch_to(self, task: str, host: str) -> None:
        """Read from the sandbox of this task, after the rest of the previous one."""
        if task != self._task:
            self._read()
            self._task, self._offset = task, 0
            self._agent = f"http://{host}:{self._agent_port}"
        self._read()

    def _print_wait_reason(self) -> None:
        reason = self._marathon.explain_wait(self._name)
        if reason and reason != self._wait_reason:
            print(f"phalanx: Marathon is waiting: {reason}", flush=True)
        self._wait_reason = reason

    def _read(self) -> None:
        """Print the new output of the task; without access to it, the exit code still arrives."""
        with contextlib.suppress(LaunchError):
            while self._task and self._framework:
                new = read_sandbox(self._agent, self._framework, self._task, self._offset)
                if not new:
                    return
                self._offset += len(new.encode())
                sys.stdout.write(new)
                sys.stdout.flush()


def parse_exit(message: str) -> int:
    """Return the exit code in a message of Mesos, or minus the signal that ended the task.

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
    relay = AppRelay(MarathonClient.from_environment(url), int(port), app, Path(remembered))
    signal.signal(signal.SIGTERM, relay.end)
    code = relay.run()
    sys.exit(code if code >= 0 else 128 - code)
