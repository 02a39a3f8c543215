"""Runs the tasks of a job to its end, by the rules in rules.py.

- A task that fails is started again, up to `restarts` times. Past that the job has failed.
- To end a task is to send SIGTERM to its process group and, after `grace` seconds, SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from phalanx.cluster.spec import Task
from phalanx.errors import PhalanxError
from phalanx.launch.base import JobResult, TaskState, TaskStatus
from phalanx.launch.processes import guardian
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.processes.process import TaskProcess
from phalanx.launch.rules import describe_exit, describe_failure, has_succeeded, time_left

_TICK_SECONDS = 0.05


class Observer(Protocol):
    """Is told what happens, from the supervisor's thread."""

    def output(self, task: Task, lines: list[str]) -> None:
        """The task has printed these lines."""
        ...

    def changed(self, status: TaskStatus) -> None:
        """The task has another state."""
        ...

    def note(self, message: str) -> None:
        """Something worth a line of its own."""
        ...


class Silent:
    """An observer that shows nothing; the logs have it all."""

    def output(self, task: Task, lines: list[str]) -> None:
        """Nothing."""

    def changed(self, status: TaskStatus) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """Nothing."""


class Supervisor:
    """The loop over all processes of one job. It is run once, in a thread."""

    def __init__(self, plan: ProcessPlan, environ: Mapping[str, str], observer: Observer) -> None:
        self.plan = plan
        self.statuses = {each.task: TaskStatus(each.task, TaskState.WAITING) for each in plan.tasks}
        self.result: JobResult | None = None
        self._environ = environ
        self._observer = observer
        self._processes: dict[Task, TaskProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._settled_at = 0.0
        self._wanted: JobResult | None = None
        self._kill = threading.Event()
        self._tell: Callable[[str], None] = lambda message: None

    def cancel(self, result: JobResult) -> None:
        """Ask for the end, with this result unless the job has failed by itself."""
        self._wanted = self._wanted or result

    def kill(self) -> None:
        """End every task with SIGKILL now."""
        self._kill.set()

    def run(self) -> None:
        """Start every task and stay until the last process is gone."""
        try:
            with guardian.guarded(self.plan.run_id, self.plan.patience.grace) as self._tell:
                for command in self.plan.cleanup:
                    self._tell("!" + json.dumps(command))
                try:
                    self._loop()
                finally:
                    self._kill_everything()
                    guardian.tidy_up(self.plan.cleanup)
        except PhalanxError as error:
            self.result = JobResult(error.exit_code, str(error))
        except Exception as error:  # whatever broke, the caller of `wait` must learn of it
            self.result = JobResult(1, f"the launcher itself failed: {error!r}")

    def _loop(self) -> None:
        for task_plan in self.plan.tasks:
            if self._wanted is not None:
                break
            self._start(task_plan, restarts=0)
        started = time.monotonic()
        while self._processes:
            for key, _ in self._selector.select(_TICK_SECONDS):
                self._read(key.fileobj)  # type: ignore[arg-type]
            now = time.monotonic()
            has_failed = self.result is not None and self.result.exit_code != 0
            if self._wanted is not None and not has_failed:
                self._end(self._wanted, now)
            if self.result is None and now - started > (self.plan.time_limit or float("inf")):
                self._end(JobResult(1, f"over its time limit of {self.plan.time_limit:g} s"), now)
            for task, process in list(self._processes.items()):
                self._look_after(task, process, now)
            if self.result is not None:
                self._end_in_order(now)
        self.result = self.result or self._wanted

    def _start(self, task_plan: TaskPlan, restarts: int) -> None:
        process = TaskProcess.start(task_plan, self._environ, again=restarts > 0)
        self._tell(f"+{process.group}")
        self._processes[task_plan.task] = process
        self._selector.register(process, selectors.EVENT_READ)
        self._set(task_plan.task, state=TaskState.RUNNING, restarts=restarts)

    def _read(self, process: TaskProcess) -> None:
        lines = process.read()
        if lines is None:
            self._selector.unregister(process)
        else:
            self._show(process, lines)

    def _show(self, process: TaskProcess, lines: list[str]) -> None:
        task = process.plan.task
        if lines:
            self._observe(self._observer.output, task, lines)
        newest = (line for line in (process.current_line(), *reversed(lines)) if line.strip())
        last = next(newest, None)
        if last is not None:
            self._set(task, last_line=last)

    def _look_after(self, task: Task, process: TaskProcess, now: float) -> None:
        """Follow one process out: what it has left behind goes too, before anything else."""
        code = process.exit_code()
        if code is None:
            return
        self._show(process, process.read_rest())
        if not process.is_gone():
            if process.end_rest(now, 0 if self._kill.is_set() else self.plan.patience.grace):
                return
            self._note(f"something that {task} has started cannot be ended")
        self._tell(f"-{process.group}")
        with contextlib.suppress(KeyError):
            self._selector.unregister(process)
        self._show(process, process.finish_reading())
        del self._processes[task]
        self._exited(process, code, now)

    def _exited(self, process: TaskProcess, code: int, now: float) -> None:
        task, status = process.plan.task, self.statuses[process.plan.task]
        is_ended = process.terminated_at is not None and self.result is not None
        if is_ended or (self.result is not None and self.result.exit_code):
            self._set(task, state=TaskState.ENDED, exit_code=code)
        elif code == 0:
            self._set(task, state=TaskState.DONE, exit_code=0)
            if self.result is None and self._has_succeeded():
                self._end(JobResult(0, "succeeded"), now)
        elif self.result is not None:
            self._set(task, state=TaskState.FAILED, exit_code=code)
            self._note(f"{task} {describe_exit(code)}, but the job was already over")
        elif status.restarts < self.plan.restarts:
            self._note(
                f"{task} {describe_exit(code)}: restart "
                f"{status.restarts + 1} of {self.plan.restarts}"
            )
            guardian.end_strays(self.plan.run_id, grace=0, task=str(task))
            self._start(process.plan, status.restarts + 1)
        else:
            self._set(task, state=TaskState.FAILED, exit_code=code)
            reason = describe_failure(task, code, status.restarts)
            self._end(JobResult(1, reason, task, process.last_lines()), now)

    def _has_succeeded(self) -> bool:
        return has_succeeded({task: status.state for task, status in self.statuses.items()})

    def _end(self, result: JobResult, now: float) -> None:
        """The outcome is settled: from now on tasks only end."""
        self.result = result
        self._settled_at = now

    def _end_in_order(self, now: float) -> None:
        """Each when its time has come."""
        failed = self.result is not None and self.result.exit_code != 0
        for task, process in self._processes.items():
            left = time_left(task, self._processes, failed, self.plan.patience)
            if now >= self._settled_at + left and process.terminated_at is None:
                if left:
                    self._note(f"{task} went on after the job had succeeded, and is ended")
                process.terminate(now)
            self._kill_if_late(process, now)

    def _kill_if_late(self, process: TaskProcess, now: float) -> None:
        late = (
            process.terminated_at is not None
            and now >= process.terminated_at + self.plan.patience.grace
        )
        if late or self._kill.is_set():
            process.kill()

    def _kill_everything(self) -> None:
        """Also when the loop broke: nothing may stay."""
        broken = list(self._processes.values())
        for process in broken:
            process.kill()
        for process in broken:
            process.reap()
        in_hurry = broken or self._kill.is_set()
        guardian.end_strays(self.plan.run_id, grace=0 if in_hurry else self.plan.patience.grace)
        self._selector.close()

    def _set(self, task: Task, **changes: Any) -> None:
        self.statuses[task] = replace(self.statuses[task], **changes)
        self._observe(self._observer.changed, self.statuses[task])

    def _note(self, message: str) -> None:
        self._observe(self._observer.note, message)

    def _observe(self, report: Callable[..., None], *what: object) -> None:
        """Whatever is wrong with the one who watches, the job goes on."""
        try:
            report(*what)
        except Exception:
            self._observer = Silent()
