"""The runs under a directory, and how they stand. Plain files: no TensorFlow."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from phalanx.train.model_dir.metrics_log import (
    EVALUATIONS,
    Evaluation,
    is_better,
    read_evaluations,
    read_text,
    read_training,
)

# The chief says every quarter of a minute that it is there.
_SILENT_SECONDS = 90.0
_NOT_RUNS = {"eval", "export", "plugins", "variables", "assets"}


@dataclass(frozen=True)
class RunSummary:
    """How one run stands."""

    path: str
    state: str
    """running, done, failed, interrupted; silent, if it says that it runs but is not heard."""
    step: int
    heard: float
    """When it was last heard of, as a Unix time."""
    reason: str = ""
    training: list[Evaluation] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    @property
    def last_loss(self) -> float | None:
        """The loss of the last steps that were logged."""
        return self.training[-1].values.get("loss") if self.training else None

    def best(
        self, metric: str | None = None, best: Literal["min", "max"] | None = None
    ) -> tuple[str, float, int] | None:
        """The best evaluation: metric, value, step. Unasked: the first metric beside the loss."""
        names = list(dict.fromkeys(name for e in self.evaluations for name in e.values))
        name = metric or next((n for n in names if n != "loss"), "loss")
        known = [e for e in self.evaluations if name in e.values]
        if not known:
            return None
        leader = known[0]
        for other in known[1:]:
            if is_better(other.values[name], leader.values[name], name, best):
                leader = other
        return name, leader.values[name], leader.step


def find_runs(directory: str) -> list[str]:
    """The directories under this one, and itself, that a run has written into."""
    return sorted(_walk(directory))


def read_run(path: str, now: float | None = None) -> RunSummary:
    """What a run's files say of it."""
    now = time.time() if now is None else now
    evaluations, training = read_evaluations(path), read_training(path)
    try:
        status = json.loads(read_text(f"{path}/status.json"))
        state, step = str(status["state"]), int(status["step"])
        heard, reason = float(status["time"]), str(status["reason"])
    except (ValueError, KeyError, TypeError):
        state, step, heard, reason = "unknown", 0, _changed(path), ""
    step = max([step, *(e.step for e in (*evaluations[-1:], *training[-1:]))])
    if state == "running" and now - heard > _SILENT_SECONDS:
        state = "silent"
    return RunSummary(path, state, step, heard, reason, training, evaluations)


def _walk(directory: str) -> Iterator[str]:
    for folder, inner, files in os.walk(directory):
        inner[:] = [n for n in inner if n not in _NOT_RUNS and not n.startswith(".")]
        if {"status.json", "checkpoint"} & set(files) or Path(folder, EVALUATIONS).is_file():
            yield folder


def _changed(path: str) -> float:
    try:
        return max(file.stat().st_mtime for file in Path(path).iterdir())
    except (OSError, ValueError):
        return 0.0
