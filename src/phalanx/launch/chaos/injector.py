"""Applies planned faults to a running job, and measures how it recovers."""

import contextlib
import math
import resource
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.cluster.progress import read_progress
from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import JobResult
from phalanx.launch.chaos import damage
from phalanx.launch.chaos.network import Network
from phalanx.launch.chaos.scenarios import (
    DAMAGES,
    FINISHED,
    LONG_CUT_SECONDS,
    PREPARING,
    STARTING,
    UNSAVED,
    Action,
    Fault,
    FaultEvent,
    Scenario,
)
from phalanx.launch.processes.guardian import find_run_processes, signal_all
from phalanx.launch.processes.handle import SupervisedHandle

RECOVERED = "recovered"
_TICK_SECONDS = 0.2
# The progress of the run fits into such a file, and a checkpoint does not.
_SMALL_FILE = 2048


@dataclass(frozen=True)
class Outcome:
    """What became of a fault.

    Attributes:
        fault: The fault.
        step: The step of the run when it happened; None if it did not happen.
        detected_after: After how many seconds the task was ended and started again.
        new_step_after: After how many seconds the run was past that step.
        stalled: The longest time without a new step, in seconds.
        steps_redone: How many steps the run has made twice.
        result: `recovered`, or what went wrong.
    """

    fault: Fault
    step: int | None = None
    detected_after: float | None = None
    new_step_after: float | None = None
    stalled: float = 0.0
    steps_redone: int = 0
    result: str = "not reached"


@dataclass(frozen=True)
class Injector:
    """Applies faults to one job.

    Args:
        handle: The job.
        run_id: Its run id, by which its processes are found.
        progress_file: Where its chief writes its progress.
        limit: How many seconds the job has to make its first step, and to recover from a fault.
        pause: How many seconds of undisturbed steps precede each fault.
        note: Receives what happens.
        network: The hosts of the tasks that are cut off from the network.
    """

    handle: SupervisedHandle
    run_id: str
    progress_file: Path
    limit: float
    pause: float
    note: Callable[[str], None]
    network: Network | None = None

    def run(self, faults: Sequence[Fault]) -> list[Outcome]:
        """Apply the faults one after the other, until one is not recovered from."""
        outcomes = [Outcome(fault) for fault in faults]
        when = faults[0].scenario.when if faults else ""
        if when in (STARTING, PREPARING):
            if not self._wait_for(lambda: self._is_running(faults[0].tasks), self.limit):
                return outcomes
        elif not self._wait_for(lambda: self._step() >= 1, self.limit):
            return outcomes
        for number, fault in enumerate(faults):
            if not fault.scenario.comes_first:
                self._wait_for(lambda: False, self.pause)
            if self.handle.wait(0) is not None:
                break
            outcomes[number] = self._apply(fault)
            if outcomes[number].result != RECOVERED:
                break
        return outcomes

    def _apply(self, fault: Fault) -> Outcome:
        """Cause a fault, and watch the job until it has recovered, or has failed to."""
        scenario = fault.scenario
        if obstacle := self._wait_for_moment(scenario):
            return Outcome(fault, self._step(), result=obstacle)
        step, started = max(0, self._step()), time.monotonic()
        restarts, chief = self._restarts(), self._restarts_chief()
        begun_at: float | None = None
        events = scenario.make_timetable(fault.tasks)
        hit: set[Task] = set()
        self.note(f"step {step}: {', '.join(map(str, fault.tasks))}: {scenario.name}")
        outcome = Outcome(fault, step)
        roles = {task.role for task in fault.tasks}
        # Without parameter servers, all trainers begin again when one is lost.
        has_ps = any(task.role is Role.PS for task in restarts)
        decisive = {Role.PS, Role.CHIEF} if has_ps else {Role.CHIEF, Role.WORKER}
        begins_again = scenario.ends_task and bool(roles & decisive)
        lowest = last = step
        last_change, seen_at_end, step_at_end = 0.0, 0, step
        while (now := time.monotonic() - started) < self.limit:
            while events and now >= events[0].after:
                event = events.pop(0)
                if event.begins:
                    restarts[event.task] = self._restarts()[event.task]
                    if event.task in hit:
                        # What has recovered from the first time must do so again.
                        chief, begun_at = self._restarts_chief(), None
                    hit.add(event.task)
                self._cause(fault, event)
                seen_at_end = self._steps_of(fault)
            is_over = not events and (now > LONG_CUT_SECONDS or not scenario.lasts)
            if outcome.detected_after is None and is_over:
                counts = self._restarts()
                if all(counts[task] > restarts[task] for task in fault.tasks):
                    outcome = replace(outcome, detected_after=now)
            if begun_at is None and self._restarts_chief() > chief:
                begun_at = time.time()
            current = self._step()
            if not is_over:
                step_at_end = max(step, current)
            # Steps that were in flight may still be counted before the chief notices the loss.
            is_fresh = not begins_again or (begun_at is not None and self._written_at() > begun_at)
            lowest = min(lowest, current) if is_fresh else lowest
            if current != last:
                last, last_change = current, now
            outcome = replace(outcome, stalled=max(outcome.stalled, now - last_change))
            is_back = outcome.detected_after is not None or not scenario.ends_task
            if scenario.cuts and is_over and not scenario.lasts:
                # The others may have trained on all the time.
                is_back = self._steps_of(fault) > seen_at_end
            is_past = current > (step if not scenario.lasts else step_at_end)
            if is_past and is_over and is_back and is_fresh:
                redone = max(0, step - lowest)
                return replace(outcome, new_step_after=now, steps_redone=redone, result=RECOVERED)
            if (result := self.handle.wait(_TICK_SECONDS)) is not None:
                return replace(outcome, result=_judge_end(fault, result))
        return replace(outcome, result=f"no new step within {self.limit:.0f} s")

    def _wait_for_moment(self, scenario: Scenario) -> str:
        """Wait until a fault can happen; return why it never can, if it cannot."""
        if scenario.when == STARTING:
            return "the job had made steps before" if self._step() >= 1 else ""
        if scenario.when == PREPARING:
            self._wait_for(lambda: self._step() >= 0, self.limit)
            return "the job had made steps before" if self._step() >= 1 else ""
        if scenario.when == UNSAVED:
            return "there was a checkpoint before" if self._checkpoint() else ""
        if scenario.when and not self._wait_for_activity(scenario.when):
            return f"the chief was never {scenario.when}"
        if scenario.action in DAMAGES and not self._wait_for(
            lambda: damage.count_checkpoints(self._checkpoint()) > 1, self.limit
        ):
            return "there were never two checkpoints in local files"
        return ""

    def _cause(self, fault: Fault, event: FaultEvent) -> None:
        task, action = event.task, fault.scenario.action
        processes = find_run_processes(self.run_id, str(task))
        match action:
            case Action.CUT | Action.CUT_SENDING | Action.CUT_RECEIVING:
                assert self.network is not None
                change = self.network.cut if event.begins else self.network.heal
                sends, receives = (
                    action is not Action.CUT_RECEIVING,
                    action is not Action.CUT_SENDING,
                )
                change(task, sends=sends, receives=receives)
            case Action.SPLIT:
                assert self.network is not None
                half = len(fault.tasks) // 2
                if task in fault.tasks[:half]:
                    self.network.split([task], fault.tasks[half:], heal=not event.begins)
            case Action.EXPIRE:
                signal_all(processes, signal.SIGTERM if event.begins else signal.SIGKILL)
            case Action.FILL_DISK:
                size = _SMALL_FILE if event.begins else resource.RLIM_INFINITY
                set_limit(processes, resource.RLIMIT_FSIZE, size)
            case Action.LIMIT_MEMORY:
                set_limit(processes, resource.RLIMIT_AS, 0)
            case Action.FLIP_BIT | Action.TRUNCATE | Action.EMPTY | Action.DELETE:
                _DAMAGES[action](self._checkpoint())
                signal_all(processes, signal.SIGKILL)
            case _:
                signal_all(processes, action.value if event.begins else signal.SIGCONT)

    def _is_running(self, tasks: Sequence[Task]) -> bool:
        return all(find_run_processes(self.run_id, str(task)) for task in tasks)

    def _checkpoint(self) -> str:
        """Return the path of the newest checkpoint; empty if there is none."""
        progress = read_progress(self.progress_file)
        return "" if progress is None else progress.checkpoint

    def _wait_for_activity(self, activity: str) -> bool:
        """Wait until the chief saves or evaluates, which may take less than the usual tick."""
        deadline = time.monotonic() + self.limit
        while time.monotonic() < deadline and self.handle.wait(0.01) is None:
            progress = read_progress(self.progress_file)
            if progress is not None and progress.activity == activity:
                return True
        return False

    def _steps_of(self, fault: Fault) -> int:
        """Return how many steps a trainer has made; of other tasks, how many the run has made."""
        progress = read_progress(self.progress_file)
        if progress is None:
            return -1
        return min(progress.trainer_steps.get(str(task), progress.step) for task in fault.tasks)

    def _restarts(self) -> dict[Task, int]:
        return {status.task: status.restarts for status in self.handle.status()}

    def _restarts_chief(self) -> int:
        return sum(s.restarts for s in self.handle.status() if s.task.role is Role.CHIEF)

    def _written_at(self) -> float:
        try:
            return self.progress_file.stat().st_mtime
        except OSError:
            return 0.0

    def _step(self) -> int:
        progress = read_progress(self.progress_file)
        return -1 if progress is None else progress.step

    def _wait_for(self, is_true: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.handle.wait(_TICK_SECONDS) is None:
            if is_true():
                return True
        return False


_DAMAGES = {
    Action.FLIP_BIT: damage.flip_bit,
    Action.TRUNCATE: damage.truncate,
    Action.EMPTY: damage.empty,
    Action.DELETE: damage.delete,
}


def _judge_end(fault: Fault, result: JobResult) -> str:
    """Say whether the job has ended as it should, or why not."""
    if fault.scenario.ends_job and result.exit_code and result.reason:
        return RECOVERED
    # An evaluator may still be missing when the run is done.
    is_last = fault.scenario.when == FINISHED or all(t.role is Role.EVALUATOR for t in fault.tasks)
    if result.exit_code == 0 and is_last:
        return RECOVERED
    return f"the job ended: {result.reason}"


def set_limit(processes: Iterable[int], kind: int, size: int) -> None:
    """Limit files, as if the disk were full, or memory, as a container without more of it."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
            _, most = resource.prlimit(pid, kind)
            soft = size if most == resource.RLIM_INFINITY else min(size, most)
            soft = most if size == resource.RLIM_INFINITY else soft
            resource.prlimit(pid, kind, (soft, most))


def render_table(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return the rows of the table at the end, with a heading."""

    def seconds(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{value:.1f} s"

    heading = (
        *("fault", "task", "at step", "detected after", "new step after"),
        *("longest stall", "redone", "result"),
    )
    rows = [
        (
            outcome.fault.scenario.name,
            ", ".join(map(str, outcome.fault.tasks)),
            "-" if outcome.step is None else str(outcome.step),
            seconds(outcome.detected_after),
            seconds(outcome.new_step_after),
            "-" if outcome.step is None else seconds(outcome.stalled),
            str(outcome.steps_redone),
            outcome.result,
        )
        for outcome in outcomes
    ]
    return [heading, *rows]
