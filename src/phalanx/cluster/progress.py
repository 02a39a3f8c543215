"""The progress of a run, in a small file that its chief writes and its launcher shows.

A launcher that can read files of its tasks sets PHALANX_PROGRESS_FILE for the chief. With the value
`-` the chief prints its progress instead, as lines that a launcher on another host takes out of its
output.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

PROGRESS_VARIABLE = "PHALANX_PROGRESS_FILE"
PRINTED = "-"
PROGRESS_MARK = b"\x1ephalanx-progress "
"""What precedes the progress in a line of output."""

N = TypeVar("N", int, float)


@dataclass(frozen=True)
class RunProgress:
    """How far a run is.

    Attributes:
        task: The task that leads the run, and writes the file.
        step: The number of steps that are done.
        total: The step at which the run ends, if that is known.
        loss: The mean loss of the last group of steps.
        examples_per_second: The current speed of all trainers together.
        seconds_left: An estimate of the remaining time.
        activity: What the chief does: `training`, `evaluating` or `saving`.
        trainer_steps: The number of steps of each trainer, by its task.
        shares: The number of trainers must divide it, so that they share the global batch evenly;
            0 if there may be any number.
        stragglers: The trainers that are much slower than the others.
        checkpoint: The path of the newest checkpoint; empty if there is none.
    """

    task: str
    step: int
    total: int | None = None
    loss: float | None = None
    examples_per_second: float | None = None
    seconds_left: float | None = None
    activity: str = "training"
    trainer_steps: Mapping[str, int] = field(default_factory=dict)
    shares: int = 0
    stragglers: tuple[str, ...] = ()
    checkpoint: str = ""

    def write(self, path: Path) -> None:
        """Replace the file atomically."""
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)

    def print(self, descriptor: int = 1) -> None:
        """Write a line of output, in one call, so that it is not mixed with other output."""
        os.write(descriptor, PROGRESS_MARK + json.dumps(asdict(self)).encode() + b"\n")


def read_progress(path: Path) -> RunProgress | None:
    """Read a progress file; None if there is none, or none that can be read."""
    try:
        return parse_progress(path.read_text())
    except (OSError, ValueError):
        return None


def parse_progress(text: str | bytes) -> RunProgress | None:
    """Return the progress that a text contains; None if it contains none."""
    try:
        found: dict[str, Any] = json.loads(text)
        return RunProgress(
            str(found["task"]),
            int(found["step"]),
            _read_number(found["total"], int),
            _read_number(found["loss"], float),
            _read_number(found["examples_per_second"], float),
            _read_number(found["seconds_left"], float),
            str(found["activity"]),
            {str(task): int(steps) for task, steps in dict(found["trainer_steps"]).items()},
            max(0, int(found.get("shares", 0))),
            tuple(str(task) for task in found.get("stragglers", ())),
            str(found.get("checkpoint", "")),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _read_number(value: Any, kind: type[N]) -> N | None:
    number = None if value is None else kind(value)
    return number if number is not None and math.isfinite(number) else None
