"""Stands for one container: starts it, prints its output, and exits as it does.

`docker start --attach` would be the same in one command, but leaves as soon as it is asked to end,
and the container's last words are lost. Here SIGTERM stops the container, and its output is read to
the end. Only the standard library is used.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import FrameType

_ANSWER_SECONDS = 60.0
_AGAIN_SECONDS = 1.0


def follow(container: str, grace: str) -> int:
    """Run the container to its end; the exit code is the container's."""
    stops: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        command = ["docker", "stop", "-t", grace, container]
        stops.append(_start(command, stdout=subprocess.DEVNULL))

    if _start(["docker", "start", container], stdout=subprocess.DEVNULL).wait():
        return 1
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # Of an earlier start the output was read already.
    since = _ask("inspect", "--format", "{{.State.StartedAt}}", container)
    while True:
        _start(["docker", "logs", "--follow", "--since", since, container]).wait()
        state = _ask("inspect", "--format", "{{.State.Running}} {{.State.ExitCode}}", container)
        if state.partition(" ")[0] != "true":
            break
        # The engine has let go of us, and not the container of its work.
        since = f"{time.time():.3f}"
        time.sleep(_AGAIN_SECONDS)
    for each in stops:
        each.wait()
    return int(state.partition(" ")[2] or 1)


def _start(command: list[str], stdout: int | None = None) -> subprocess.Popen[bytes]:
    """In a group of its own: whoever wants the end asks the whole group of this process."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, process_group=0)


def _ask(*arguments: str) -> str:
    done = subprocess.run(
        ["docker", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=_ANSWER_SECONDS,
        check=False,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(follow(*sys.argv[1:]))
