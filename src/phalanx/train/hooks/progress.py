"""Reports how far the run is: to the launcher of this task, and to Kubeflow Trainer."""

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from phalanx.cluster.progress import PRINTED, PROGRESS_VARIABLE, RunProgress
from phalanx.cluster.spec import Task
from phalanx.train.hooks.base import Hook, find_total
from phalanx.train.loop.session import Session
from phalanx.train.runtime.topology import Topology
from phalanx.train.runtime.trainjob_status import find_trainjob_status

_SECONDS_BETWEEN_WRITES = 0.5
_SECONDS_BETWEEN_LINES = 2.0
# The speed is measured over about the last ten seconds.
_WINDOW = 20


class ProgressHook(Hook):
    """Reports the step, the loss and the speed, not more often than is useful.

    Args:
        report: What is called with the progress.
        pause: The time between two reports in seconds.
        task: The task of this process.
        trainers: The tasks that train.
        shares: The number of trainers must divide it; 0 if there may be any number.
    """

    def __init__(
        self,
        report: Callable[[RunProgress], None],
        pause: float,
        task: Task,
        trainers: Sequence[Task],
        shares: int = 0,
    ) -> None:
        self._send = report
        self._pause = pause
        self._task = task
        self._trainers = trainers
        self._shares = shares
        self._speed: float | None = None
        self._seen: deque[tuple[float, int, float]] = deque(maxlen=_WINDOW)

    def begin(self, session: Session) -> None:
        self._report(session, "training")

    def after_step(self, session: Session) -> None:
        if not self._seen or session.now - self._seen[-1][0] >= self._pause:
            # The first entry comes after the first group of steps, which includes the tracing.
            self._seen.append((session.now, session.step, session.examples))
            self._report(session, "training")

    def may_save(self, session: Session) -> bool:
        self._report(session, "saving")
        return True

    def before_evaluate(self, session: Session) -> None:
        self._report(session, "evaluating")

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        # Evaluations do not count as time of training.
        self._seen.clear()

    def on_rollback(self, session: Session) -> None:
        self._seen.clear()

    def end(self, session: Session) -> None:
        self._report(session, "finished")

    def _report(self, session: Session, activity: str) -> None:
        total, seconds_left = find_total(session), None
        if len(self._seen) > 1:
            (start, first, read), (now, last, examples) = self._seen[0], self._seen[-1]
            seconds = max(now - start, 1e-9)
            self._speed = (examples - read) / seconds
            if total is not None and last > first:
                seconds_left = max(0, total - session.step) * seconds / (last - first)
        steps = session.trainer_steps or {str(task): session.step for task in self._trainers}
        loss = session.last_loss if session.examples else math.nan
        progress = RunProgress(
            str(self._task),
            session.step,
            total,
            loss if math.isfinite(loss) else None,
            self._speed,
            seconds_left,
            activity,
            steps,
            self._shares,
            tuple(sorted(session.stragglers)),
            _make_absolute(session.latest_checkpoint or ""),
        )
        # The run must not fail because its launcher has removed the directory.
        with contextlib.suppress(OSError):
            self._send(progress)


def _make_absolute(path: str) -> str:
    return os.path.abspath(path) if path and "://" not in path else path  # noqa: PTH100


def make_progress_hooks(topology: Topology, shares: int) -> list[Hook]:
    """Return hooks that report the progress to those who ask for it in the environment."""
    reports: list[tuple[Callable[[RunProgress], None], float]] = []
    wanted = os.environ.get(PROGRESS_VARIABLE)
    if wanted == PRINTED:
        reports.append((RunProgress.print, _SECONDS_BETWEEN_LINES))
    elif wanted:
        path = Path(wanted)
        reports.append((lambda progress: progress.write(path), _SECONDS_BETWEEN_WRITES))
    if status := find_trainjob_status(os.environ):
        # It takes only some of the reports.
        reports.append((status.report, _SECONDS_BETWEEN_WRITES))
    return [
        ProgressHook(report, pause, topology.task, topology.trainers, shares)
        for report, pause in reports
    ]
