"""Reports the training of the chief to its task file, for the Cluster page of TensorBoard."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from phalanx.cluster.spec import Task
from phalanx.train.hooks.base import Hook, find_total
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.task_files import HEARTBEAT_SECONDS, TaskFile


class TaskFileHook(Hook):
    """Reports the step, the speed, the parts of the time of a step, saves and evaluations.

    Args:
        file: The file.
        trainers: The tasks that train.
    """

    def __init__(self, file: TaskFile, trainers: Sequence[Task]) -> None:
        self._file = file
        self._trainers = trainers
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._since = self._entered = time.perf_counter()
        self._last: tuple[int, float, float] = (0, 0.0, 0.0)

    def begin(self, session: Session) -> None:
        if session.is_restored:
            self._file.add_event("restored", "from the newest checkpoint", session.step)
        self._file.update(variable_bytes=dict(session.variable_bytes))
        self._reset(session)
        self._report(session)

    def before_step(self, session: Session) -> None:
        self._entered = time.perf_counter()

    def after_step(self, session: Session) -> None:
        self._spend("training")
        if time.perf_counter() - self._since >= HEARTBEAT_SECONDS:
            self._report(session)

    def may_save(self, session: Session) -> bool:
        self._entered = time.perf_counter()
        return True

    def on_save(self, session: Session, path: str) -> None:
        self._spend("saving")
        self._file.add_event("saved", path.rpartition("/")[2], session.step)

    def before_evaluate(self, session: Session) -> None:
        self._entered = time.perf_counter()

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        self._spend("evaluating")
        text = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._file.add_event("evaluated", text, session.step)

    def on_rollback(self, session: Session) -> None:
        self._file.add_event("rolled back", "because the run diverged", session.step)

    def end(self, session: Session) -> None:
        self._report(session)

    def _spend(self, part: str) -> None:
        now = time.perf_counter()
        self._parts[part] += now - self._entered
        self._entered = now

    def _reset(self, session: Session) -> None:
        self._since = time.perf_counter()
        self._last = (session.step, float(session.examples), session.waited_seconds)
        self._parts.clear()

    def _report(self, session: Session) -> None:
        seconds = time.perf_counter() - self._since
        steps, examples = session.step - self._last[0], float(session.examples) - self._last[1]
        if steps > 0 and seconds > 0:
            waited = session.waited_seconds - self._last[2]
            parts = {name: spent / steps for name, spent in self._parts.items()}
            parts["training"] = max(0.0, self._parts["training"] - waited) / steps
            parts["waiting for peers"] = waited / steps
            parts["other"] = max(0.0, seconds - sum(self._parts.values())) / steps
            self._file.update(seconds_per_step=seconds / steps, parts=parts)
            self._file.update(examples_per_second=examples / seconds)
        loss = session.last_loss if session.examples else math.nan
        steps_of = session.trainer_steps or {str(task): session.step for task in self._trainers}
        self._file.update(
            step=session.step,
            total=find_total(session),
            loss=loss if math.isfinite(loss) else None,
            trainer_steps=dict(steps_of),
        )
        self._reset(session)
