"""Runs the processes of a job to its end, by the rules in termination.py.

- A task that fails is restarted by the rules in restarts.py. After that the job has failed.
- A task that is stopped for too long is killed, as are all trainers of a run without progress.
- To end a task, its process group gets SIGTERM and, after the grace period, SIGKILL.
- The trainers of an elastic job start and end together, by the rules in generations.py.
- A worker that is idle and silent after another worker has succeeded is named, and fails the job
  after the plan's limit. In TensorFlow 1 programs, a worker that starts late waits for ever.
"""

import contextlib
import json
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

from phalanx.cluster.spec import Role, Task
from phalanx.errors import PhalanxError
from phalanx.launch.base import JobResult, TaskState, TaskStatus
from phalanx.launch.processes import guardian
from phalanx.launch.processes.elastic import ElasticTasks
from phalanx.launch.processes.forks import ForkServers
from phalanx.launch.processes.generations import Fail, Kill, Save, Start
from phalanx.launch.processes.hangs import ProgressWatch, StopWatch, dump_stacks
from phalanx.launch.processes.orphans import SUPERVISOR_VARIABLE, name_supervisor
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.processes.process import TaskProcess
from phalanx.launch.processes.restarts import (
    RestartPolicy,
    TaskFailure,
    describe_stop,
    find_exception,
    names_failed_peer,
    names_lost_peer,
)
from phalanx.launch.processes.silence import SilenceWatch
from phalanx.launch.termination import (
    describe_exit,
    has_succeeded,
    late_tasks,
    time_left,
)

_TICK_SECONDS = 0.05
# A silent task is named after this part of the limit.
_SILENCE_NOTED = 0.1
# How long a task has to write the stacks of its threads before it is killed.
_DUMP_SECONDS = 3.0


class Observer(Protocol):
    """Receives what happens to the tasks, in the supervisor's thread."""

    def output(self, task: Task, lines: list[str]) -> None: ...
    def changed(self, status: TaskStatus) -> None: ...
    def note(self, message: str) -> None: ...


class NullObserver:
    """An observer that ignores everything; the logs have the output."""

    def output(self, task: Task, lines: list[str]) -> None: ...
    def changed(self, status: TaskStatus) -> None: ...
    def note(self, message: str) -> None: ...


class Supervisor:
    """The loop over all processes of one job. It runs once, in a thread."""

    def __init__(self, plan: ProcessPlan, environ: Mapping[str, str], observer: Observer) -> None:
        self.plan = plan
        self.statuses = {each.task: TaskStatus(each.task, TaskState.WAITING) for each in plan.tasks}
        self.result: JobResult | None = None
        self._environ = {**environ, SUPERVISOR_VARIABLE: name_supervisor()}
        self._observer = observer
        self._processes: dict[Task, TaskProcess] = {}
        self._delayed: dict[Task, tuple[float, TaskPlan]] = {}
        self._started: set[Task] = set()
        self._last_lines: dict[Task, tuple[str, ...]] = {}
        self._policy = RestartPolicy(
            plan.restarts,
            is_elastic=plan.elastic is not None,
            has_servers=any(each.task.role is Role.PS for each in plan.tasks),
            knows_steps=plan.progress_file is not None,
        )
        self._elastic: ElasticTasks | None = None
        if plan.elastic is not None:
            self._elastic = ElasticTasks(plan, plan.elastic, self._policy)
            spare = [slot for slot in plan.elastic.size.slots if slot not in self.statuses]
            self.statuses |= {slot: TaskStatus(slot, TaskState.WAITING) for slot in spare}
        self._stops = StopWatch()
        self._progress = ProgressWatch(Path(plan.progress_file or os.devnull))
        self._hangs: dict[Task, str] = {}
        self._kill_hung_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._settled_at = 0.0
        self._silence = SilenceWatch()
        self._named_silent: set[Task] = set()
        self._requested: JobResult | None = None
        self._kill = threading.Event()
        self._servers = ForkServers()
        self._guardian: Callable[[str], None] = lambda message: None

    def cancel(self, result: JobResult) -> None:
        """Request the end, with this result unless the job fails by itself."""
        self._requested = self._requested or result

    def kill(self) -> None:
        self._kill.set()

    def run(self) -> None:
        """Start every task and return when the last process has ended."""
        try:
            with guardian.start_guardian(self.plan.run_id, self._grace()) as self._guardian:
                for command in self.plan.cleanup:
                    self._guardian("!" + json.dumps(command))
                try:
                    self._loop()
                finally:
                    self._kill_everything()
                    if self._elastic is not None:
                        self._elastic.close()
                    guardian.run_cleanup(self.plan.cleanup)
        except PhalanxError as error:
            self.result = JobResult(error.exit_code, str(error))
        except Exception as error:  # whatever failed, the caller of `wait` must get a result
            self.result = JobResult(1, f"the launcher itself failed: {error!r}")

    def _start_servers(self) -> None:
        """Start the processes that the tasks are forked from, and wait until they are ready."""
        self._servers.start(self.plan.tasks, self._environ, restarts=self.plan.restarts > 0)
        for server in self._servers:
            self._guardian(f"+{server.process.pid}")
        while self._servers.are_starting() and self._requested is None:
            time.sleep(_TICK_SECONDS)

    def _loop(self) -> None:
        self._start_servers()
        for task_plan in self.plan.tasks:
            if self._requested is not None:
                break
            self._start(task_plan, restarts=0)
        started = time.monotonic()
        while self._processes or self._delayed or self._is_forming():
            for key, _ in self._selector.select(_TICK_SECONDS):
                self._read(cast(TaskProcess, key.fileobj))
            now = time.monotonic()
            if self._requested is not None and not self._has_failed():
                self._settle(self._requested, now)
            if self.result is None and now - started > (self.plan.time_limit or float("inf")):
                limit = f"over its time limit of {self.plan.time_limit:g} s"
                self._settle(JobResult(1, limit), now)
            for task, process in list(self._processes.items()):
                self._check_exit(task, process, now)
            if self.result is None and self.plan.silence_limit and self._elastic is None:
                self._check_silence(now, self.plan.silence_limit)
            if self.result is None:
                self._check_hangs(now)
                self._start_delayed(now)
                self._change_generation(now)
            else:
                self._drop_delayed()
                self._end_tasks(now)
        self.result = self.result or self._requested

    def _is_forming(self) -> bool:
        """Whether a generation of an elastic job has ended, and the next one has not begun."""
        return self.result is None and self._elastic is not None and self._elastic.is_ending

    def _change_generation(self, now: float) -> None:
        """Stop the trainers of an elastic job, or start them, as its generations require."""
        elastic = self._elastic
        if elastic is None:
            return
        action = elastic.advance(now)
        while elastic.notes:
            self._note(elastic.notes.pop(0))
        running = [task for task in self._processes if task in elastic.slots]
        match action:
            case Start():
                for task_plan in elastic.plan_generation():
                    self._start(task_plan, self._count_start(task_plan.task))
                self._note(elastic.describe())
            case Save(reason):
                self._note(reason)
                for task in [task for task in self._delayed if elastic.takes(task)]:
                    del self._delayed[task]
                    elastic.note_end(task)
                for task in running:
                    self._processes[task].terminate(now)
            case Kill():
                for task in (*running, *elastic.servers):
                    if task in self._processes:
                        self._processes[task].kill_task(now)
            case Fail(reason, failure):
                failed = None if failure is None else failure.task
                lines = () if failed is None else self._last_lines.get(failed, ())
                if failure is not None:
                    status = self.statuses[failure.task]
                    self._set(replace(status, state=TaskState.FAILED, exit_code=failure.code))
                self._settle(JobResult(1, reason, failed, lines), now)
            case None if elastic.is_ending and not running:
                # The chief has saved what they had.
                for task in elastic.servers:
                    if task in self._processes:
                        self._processes[task].kill_task(now)

    def _count_start(self, task: Task) -> int:
        return self.statuses[task].restarts + int(task in self._started)

    def _has_failed(self) -> bool:
        return self.result is not None and self.result.exit_code != 0

    def _start(self, task_plan: TaskPlan, restarts: int) -> None:
        process = TaskProcess.start(
            task_plan,
            self._environ,
            again=restarts > 0,
            log_limit=self.plan.log_limit,
            servers=self._servers,
        )
        self._policy.start(task_plan.task, self._progress.read_step(), time.monotonic())
        self._started.add(task_plan.task)
        self._guardian(f"+{process.group}")
        self._processes[task_plan.task] = process
        self._selector.register(process, selectors.EVENT_READ)
        status = self.statuses[task_plan.task]
        self._set(replace(status, state=TaskState.RUNNING, restarts=restarts))

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
            self._set(replace(self.statuses[task], last_line=last))

    def _check_exit(self, task: Task, process: TaskProcess, now: float) -> None:
        """Once a process has exited, end its children before anything else happens."""
        code = process.exit_code()
        if code is None:
            if process.is_out_of_reach(now):
                process.kill()
            return
        self._show(process, process.read_rest())
        if not process.is_gone():
            if process.end_children(now, 0 if self._kill.is_set() else self._grace()):
                return
            self._note(f"a child process of {task} cannot be ended")
        self._guardian(f"-{process.group}")
        with contextlib.suppress(KeyError):
            self._selector.unregister(process)
        self._show(process, process.finish_reading())
        del self._processes[task]
        self._handle_exit(process, code, now)

    def _handle_exit(self, process: TaskProcess, code: int, now: float) -> None:
        task, status = process.plan.task, self.statuses[process.plan.task]
        is_ended = process.terminated_at is not None and self.result is not None
        if is_ended or self._has_failed():
            self._set(replace(status, state=TaskState.ENDED, exit_code=code))
        elif code == 0:
            self._set(replace(status, state=TaskState.DONE, exit_code=0))
            if self._elastic is not None:
                self._elastic.note_end(task)
            if self.result is None and has_succeeded(self._states()):
                lost = ", ".join(map(str, sorted(self._policy.lost)))
                self._settle(
                    JobResult(0, f"succeeded without {lost}" if lost else "succeeded"), now
                )
        elif self.result is not None:
            self._set(replace(status, state=TaskState.FAILED, exit_code=code))
            self._note(f"{task} {describe_exit(code)}, but the job was already over")
        else:
            self._handle_failure(process, code, now)

    def _states(self) -> dict[Task, TaskState]:
        """Return the state of each task by its name in TF_CONFIG."""
        states = {task: status.state for task, status in self.statuses.items()}
        if self._elastic is None:
            return states
        ranks = {task: self._elastic.rank_of(task) for task in states}
        return {rank: states[task] for task, rank in ranks.items() if rank is not None}

    def _handle_failure(self, process: TaskProcess, code: int, now: float) -> None:
        task, status = process.plan.task, self.statuses[process.plan.task]
        lines = tuple(process.last_lines)
        error, step = find_exception(lines), self._progress.read_step()
        hang = self._hangs.pop(task, "")
        failure = TaskFailure(task, code, error, step, hang, names_lost_peer(lines))
        elastic = self._elastic
        if elastic is not None and elastic.takes(task):
            guardian.end_run_processes(self.plan.run_id, grace=0, task=str(task))
            self._set(replace(status, state=TaskState.WAITING))
            self._last_lines[task] = lines
            lost_peer = failure.lost_peer or names_failed_peer(lines)
            elastic.note_exit(replace(failure, lost_peer=lost_peer), now)
            return
        decision = self._policy.decide(failure, now)
        if decision.is_lost and elastic is not None and task in elastic.slots:
            self._note(f"{decision.reason}: the job goes on without it")
            self._set(replace(status, state=TaskState.WAITING))
            elastic.lose(task, now)
            return
        if decision.fails_job:
            self._set(replace(status, state=TaskState.FAILED, exit_code=code))
            self._settle(JobResult(1, decision.reason, task, lines), now)
            return
        self._note(decision.reason)
        guardian.end_run_processes(self.plan.run_id, grace=0, task=str(task))
        if task.role is Role.CHIEF and decision.delay is not None:
            self._restart_servers()
        if decision.delay is None:
            self._set(replace(status, state=TaskState.FAILED, exit_code=code))
        elif decision.delay:
            self._set(replace(status, state=TaskState.WAITING))
            self._delayed[task] = now + decision.delay, process.plan
        else:
            self._start(process.plan, status.restarts + 1)

    def _restart_servers(self) -> None:
        """Start the parameter servers again that a chief has released before it failed."""
        for task_plan in self.plan.tasks:
            status = self.statuses[task_plan.task]
            if task_plan.task.role is Role.PS and status.state is TaskState.DONE:
                self._start(task_plan, status.restarts + 1)

    def _start_delayed(self, now: float) -> None:
        for task, (at, task_plan) in list(self._delayed.items()):
            if now >= at:
                del self._delayed[task]
                self._start(task_plan, self.statuses[task].restarts + 1)

    def _drop_delayed(self) -> None:
        for task in list(self._delayed):
            del self._delayed[task]
            self._set(replace(self.statuses[task], state=TaskState.ENDED))

    def _check_hangs(self, now: float) -> None:
        """Kill tasks that have been stopped for too long, and the trainers of a run that hangs."""
        if self.plan.stop_limit:
            stopped = self._stops.stopped_seconds(now)
            for task, process in self._processes.items():
                seconds = stopped.get(process.group, 0.0)
                if seconds >= self.plan.stop_limit and task not in self._hangs:
                    self._hangs[task] = describe_stop(seconds)
                    process.kill()
        trainers = [t for t in self._processes if t.role in (Role.CHIEF, Role.WORKER)]
        if self._kill_hung_at is not None:
            if now >= self._kill_hung_at:
                self._kill_hung_at = None
                for task in trainers:
                    self._processes[task].kill_task(now)
        elif self.plan.hang_limit and self.plan.progress_file:
            seconds = self._progress.idle_seconds(now)
            if seconds >= self.plan.hang_limit:
                self._progress.restart()
                self._note(
                    f"the chief has reported no step for {seconds:.0f} s (--hang-limit): all "
                    "trainers are killed; the stacks of their threads are in the logs"
                )
                dump_stacks(guardian.find_run_processes(self.plan.run_id))
                self._kill_hung_at = now + _DUMP_SECONDS
                reason = f"was killed because the run made no step for {seconds:.0f} s"
                self._hangs.update(dict.fromkeys(trainers, reason))

    def _check_silence(self, now: float, limit: float) -> None:
        for task in late_tasks({task: status.state for task, status in self.statuses.items()}):
            process = self._processes[task]
            seconds = self._silence.silent_seconds(process, now)
            silent = f"{task} has done and written nothing for {seconds:.0f} s"
            if seconds >= limit:
                reason = f"{silent} although another worker has succeeded (--silence-limit)"
                self._settle(JobResult(1, reason, task, tuple(process.last_lines)), now)
                return
            if seconds >= limit * _SILENCE_NOTED and task not in self._named_silent:
                self._named_silent.add(task)
                self._note(
                    f"{silent}; it may wait for a worker that is done, and is ended after "
                    f"{limit:g} s"
                )

    def _settle(self, result: JobResult, now: float) -> None:
        """Fix the result of the job: from now on tasks only end."""
        self.result = result
        self._settled_at = now

    def _end_tasks(self, now: float) -> None:
        for task, process in self._processes.items():
            left = time_left(task, self._processes, self._has_failed(), self.plan.grace_periods)
            if now >= self._settled_at + left and process.terminated_at is None:
                if left:
                    self._note(f"{task} still ran after the job had succeeded, and is ended")
                process.terminate(now)
            terminated_at = process.terminated_at
            is_late = terminated_at is not None and now >= terminated_at + self._grace()
            if is_late or self._kill.is_set():
                process.kill()

    def _grace(self) -> float:
        return self.plan.grace_periods.grace

    def _kill_everything(self) -> None:
        """Leave no process behind, even if the loop has failed."""
        remaining = list(self._processes.values())
        for process in remaining:
            process.kill()
        for process in remaining:
            process.reap()
        self._servers.close()
        at_once = remaining or self._kill.is_set()
        guardian.end_run_processes(self.plan.run_id, grace=0 if at_once else self._grace())
        self._selector.close()

    def _set(self, status: TaskStatus) -> None:
        self.statuses[status.task] = status
        self._observe(self._observer.changed, status)

    def _note(self, message: str) -> None:
        self._observe(self._observer.note, message)

    def _observe(self, report: Callable[..., None], *arguments: object) -> None:
        """Replace an observer that raises, so that the job goes on."""
        try:
            report(*arguments)
        except Exception:
            self._observer = NullObserver()
