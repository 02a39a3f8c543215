"""Find the processes of tasks on this machine, whichever backend started them."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path

# In the environment of every task, to tell parallel runs of the tests apart.
TEST_RUN = uuid.uuid4().hex


def find_tasks(program: str) -> dict[str, list[int]]:
    """Return the processes of this test run with `program` in their arguments, by task."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            arguments = (entry / "cmdline").read_bytes().decode().split("\0")
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            environ = dict(each.partition("=")[::2] for each in variables)
            if program in arguments and environ.get("TEST_RUN") == TEST_RUN:
                if "python" not in arguments[0]:
                    continue
                task = json.loads(environ["TF_CONFIG"])["task"]
                found.setdefault(f"{task['type']}-{task['index']}", []).append(int(entry.name))
    return found


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait until the condition holds; the limit is for a machine with much else to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.1)
