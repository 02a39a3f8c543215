"""Reports the training of a task to its task file, for the Cluster page of TensorBoard."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from phalanx.cluster.spec import Task
from phalanx.train.hooks.base import Hook, find_total
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.task_files import HEARTBEAT_SECONDS, TaskFile, current_task_file
from phalanx.train.step.step_times import StepTimes

_NO_TIMES = StepTimes()


class TaskFileHook(Hook):
    """Reports the step, the speed, the parts of the time of a step, saves and evaluations.

    Args:
        file: The file.
        trainers: The tasks that train.
    """

    def __init__(self, file: TaskFile, trainers: Sequence[Task]) -> None:
        self._file = file
        self._trainers = trainers
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._since = self._entered = time.perf_counter()
        self._step, self._examples = 0, 0.0
        self._steps_of: Mapping[str, int] = {}
        self._times: Mapping[str, StepTimes] = {}
        self._parts: dict[str, Mapping[str, float]] = {}

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

    def _spend(self, activity: str) -> None:
        now = time.perf_counter()
        self._spent[activity] += now - self._entered
        self._entered = now

    def _count_steps(self, session: Session) -> dict[str, int]:
        return dict(session.trainer_steps or {str(task): session.step for task in self._trainers})

    def _reset(self, session: Session) -> None:
        self._since = time.perf_counter()
        self._step, self._examples = session.step, float(session.examples)
        self._steps_of, self._times = self._count_steps(session), session.step_times
        self._spent.clear()

    def _report(self, session: Session) -> None:
        seconds = time.perf_counter() - self._since
        steps = session.step - self._step
        if steps > 0 and seconds > 0:
            self._divide_time(session, seconds, steps)
            speed = (float(session.examples) - self._examples) / seconds
            self._file.update(seconds_per_step=seconds / steps, examples_per_second=speed)
        loss = session.last_loss if session.examples else math.nan
        self._file.update(
            step=session.step,
            total=find_total(session),
            loss=loss if math.isfinite(loss) else None,
            trainer_steps=self._count_steps(session),
            stragglers=sorted(session.stragglers),
        )
        self._reset(session)

    def _divide_time(self, session: Session, seconds: float, steps: int) -> None:
        """Report what this task, and the trainers that it knows, have spent their time on."""
        training = self._spent.pop("training", 0.0)
        steps_of, times_of = self._count_steps(session), session.step_times
        for task, times in times_of.items():
            made = steps_of[task] - self._steps_of.get(task, 0)
            if made > 0:
                spent = _name_parts(times - self._times.get(task, _NO_TIMES)) | self._spent
                self._parts[task] = _divide(spent, seconds, made)
        own = self._file.report.task
        if own not in times_of:
            # A chief that does not train waits for those that do.
            activity = "waiting for peers" if times_of else "training"
            self._parts[own] = _divide({activity: training} | self._spent, seconds, steps)
        others = {task: parts for task, parts in self._parts.items() if task != own}
        self._file.update(parts=self._parts.get(own, {}), trainer_parts=others)


def report_steps() -> Callable[[int, StepTimes], None]:
    """Return a function that reports the steps of a task which follows the chief.

    It takes the number of steps, and what the task has spent its time on so far.
    """
    file = current_task_file()
    since, before, times_before = time.perf_counter(), -1, _NO_TIMES

    def report(step: int, times: StepTimes) -> None:
        nonlocal since, before, times_before
        seconds, steps = time.perf_counter() - since, step - before
        if file is None or (before >= 0 and (seconds < HEARTBEAT_SECONDS or steps <= 0)):
            return
        # The first group of steps includes the tracing.
        if before >= 0:
            parts = _divide(_name_parts(times - times_before), seconds, steps)
            file.update(seconds_per_step=seconds / steps, parts=parts)
        file.update(step=step)
        since, before, times_before = time.perf_counter(), step, times

    return report


def _name_parts(times: StepTimes) -> dict[str, float]:
    return {
        "waiting for data": times.data,
        "computing": times.computing,
        "waiting for peers": times.peers,
    }


def _divide(spent: Mapping[str, float], seconds: float, steps: int) -> dict[str, float]:
    """Return the parts of the time of one step."""
    parts = {**spent, "other": max(0.0, seconds - sum(spent.values()))}
    return {name: part / steps for name, part in parts.items()}
