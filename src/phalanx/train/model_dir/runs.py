"""Summaries of the runs under a directory, read without TensorFlow."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.train.model_dir import metrics_log
from phalanx.train.model_dir.layout import CHECKPOINT_LIST, EVALUATION_LOG, STATUS
from phalanx.train.model_dir.status import HEARTBEAT_SECONDS, State, Status, read_status

_SILENT_SECONDS = 6 * HEARTBEAT_SECONDS
_NOT_RUNS = {"cluster", "eval", "export", "plugins", "variables", "assets"}


@dataclass(frozen=True)
class RunSummary:
    """The state and the metrics of one run."""

    path: str
    state: State
    step: int
    heard: float
    """The Unix time of the last heartbeat, or of the last change in the directory."""
    reason: str = ""
    training: list[metrics_log.MetricsEntry] = field(default_factory=list)
    evaluations: list[metrics_log.MetricsEntry] = field(default_factory=list)

    @property
    def last_loss(self) -> float | None:
        return self.training[-1].values.get("loss") if self.training else None

    def best(
        self, metric: str | None = None, best: metrics_log.Direction | None = None
    ) -> tuple[str, float, int] | None:
        """Return metric, value and step of the best; by default of the first metric but loss."""
        names = dict.fromkeys(name for e in self.evaluations for name in e.values)
        name = metric or next((n for n in names if n != "loss"), "loss")
        leader = metrics_log.find_best(self.evaluations, name, best)
        return None if leader is None else (name, leader.values[name], leader.step)


def find_runs(directory: str) -> list[str]:
    """Return this directory and those under it that hold the files of a run."""
    found = []
    for folder, inner, files in os.walk(directory):
        inner[:] = [n for n in inner if n not in _NOT_RUNS and not n.startswith(".")]
        if {STATUS, CHECKPOINT_LIST} & set(files) or Path(folder, EVALUATION_LOG).is_file():
            found.append(folder)
    return sorted(found)


def read_run(path: str, now: float | None = None) -> RunSummary:
    """Read the summary of the run in a directory."""
    now = time.time() if now is None else now
    evaluations, training = metrics_log.read_evaluations(path), metrics_log.read_training(path)
    status = read_status(path) or Status(State.UNKNOWN, time=_last_change(path))
    step = max([status.step, *(e.step for e in (*evaluations[-1:], *training[-1:]))])
    state = status.state
    if state is State.RUNNING and now - status.time > _SILENT_SECONDS:
        state = State.SILENT
    return RunSummary(path, state, step, status.time, status.reason, training, evaluations)


def _last_change(path: str) -> float:
    try:
        return max(file.stat().st_mtime for file in Path(path).iterdir())
    except (OSError, ValueError):
        return 0.0
