"""Finding the process of a task on this machine, whatever has started it there."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path


def find_tasks(program: str) -> dict[str, list[int]]:
    """Processes that have TF_CONFIG and `program` among their arguments, by their task."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            arguments = (entry / "cmdline").read_bytes().decode().split("\0")
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            environ = dict(each.partition("=")[::2] for each in variables)
            if "python" in arguments[0] and program in arguments:
                task = json.loads(environ["TF_CONFIG"])["task"]
                found.setdefault(f"{task['type']}-{task['index']}", []).append(int(entry.name))
    return found


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
