"""The actor that looks after a job from inside the cluster, by the rules in rules.py.

It outlives the command that made it. When the job is over, it gives back everything but itself: it
keeps the tasks' output and how they ended, until `phalanx cancel`. Answers are plain data, since
whoever asks may have other classes than those that were sent here.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any

from phalanx.cluster.spec import Task
from phalanx.launch.backends.ray.plan import RayPlan
from phalanx.launch.backends.ray.task_actor import TaskActor
from phalanx.launch.base import JobResult, TaskState, TaskStatus
from phalanx.launch.task_commands import TaskCommand, make_task_commands, task_variables
from phalanx.launch.termination import describe_exit, describe_failure, has_succeeded, time_left

_LOOK_SECONDS = 2.0
_TICK_SECONDS = 0.25
_ANSWER_SECONDS = 60.0
_LAST_LINES = 20
_TAIL_BYTES = 64 << 10
_MOST_BYTES = 1 << 20


class JobActor:
    """One job: its placement group, its tasks' actors, and what became of them."""

    def __init__(self, plan: RayPlan) -> None:
        self._plan = plan
        self._tasks = plan.job.all_tasks()
        self._statuses = {task: TaskStatus(task, TaskState.WAITING) for task in self._tasks}
        self._logs: dict[Task, IO[bytes]] = {}
        self._actors: dict[Task, Any] = {}
        self._running: dict[Task, int] = {}
        self._ending: set[Task] = set()
        self._group: Any = None
        self._addresses: Mapping[Task, str] = {}
        self._commands: Mapping[Task, TaskCommand] = {}
        self._settled_at = 0.0
        self._outcome: JobResult | None = None
        self._is_over = False

    def start(self) -> str:
        """Ask for room, and look after the job from now on. Says why there can never be room."""
        from ray.util.placement_group import (  # noqa: PLC0415
            placement_group,
            remove_placement_group,
        )

        bundles = [self._plan.bundle(task) for task in self._tasks]
        self._group = placement_group(bundles, strategy=self._plan.place.strategy.name)
        if not self._group.wait(_LOOK_SECONDS) and not self._plan.place.autoscaling:
            problem = self._problem()
            if problem:
                remove_placement_group(self._group)
                return problem
        self._logs = {task: tempfile.TemporaryFile() for task in self._tasks}  # noqa: SIM115
        threading.Thread(target=self._run, daemon=True).start()
        return ""

    def state(self) -> dict[str, Any]:
        """Every task as it is now, and how the job ended if it has."""
        outcome = self._outcome if self._is_over else None
        return {
            "tasks": [each.dump() for each in list(self._statuses.values())],
            "result": outcome and outcome.dump(),
        }

    def read(self, task: str, place: int) -> tuple[bytes, bool]:
        """What a task has printed from that place on, and whether that was all."""
        over = self._is_over
        log = next(log for each, log in self._logs.items() if str(each) == task)
        printed = os.pread(log.fileno(), _MOST_BYTES, place)
        return printed, over and not printed

    def cancel(self) -> None:
        """Ask the job to end."""
        self._settle(JobResult(1, "cancelled"))

    def _problem(self) -> str:
        """Why there can never be room; nothing if others may only have to leave first."""
        import ray  # noqa: PLC0415
        from ray.util.placement_group import placement_group_table  # noqa: PLC0415

        wanted: dict[str, float] = {}
        for task in self._tasks:
            for name, amount in self._plan.bundle(task).items():
                wanted[name] = wanted.get(name, 0) + amount
        there = ray.cluster_resources()
        for name, amount in wanted.items():
            if amount > there.get(name, 0):
                return (
                    f"the job needs {amount:g} {name}, and the cluster has {there.get(name, 0):g}"
                )
        said = placement_group_table(self._group)["stats"]["scheduling_state"]
        return "no node has as much as a task needs" if said == "INFEASIBLE" else ""

    def _run(self) -> None:
        """From waiting for room to the last process; whatever breaks, nothing stays."""
        import ray  # noqa: PLC0415
        from ray.util.placement_group import remove_placement_group  # noqa: PLC0415

        try:
            while self._outcome is None and not self._group.wait(_LOOK_SECONDS):
                self._say_why_it_waits()
            if self._outcome is None:
                self._start_all()
                self._loop()
        except Exception as error:  # whoever asks must learn of it
            self._outcome = JobResult(1, f"the actor that looks after the job failed: {error!r}")
        for actor in self._actors.values():
            ray.kill(actor)
        remove_placement_group(self._group)
        for task, status in self._statuses.items():
            if status.state in (TaskState.WAITING, TaskState.RUNNING):
                self._set(task, state=TaskState.ENDED)
        self._is_over = True

    def _say_why_it_waits(self) -> None:
        from ray.util.placement_group import placement_group_table  # noqa: PLC0415

        state = placement_group_table(self._group)["stats"]["scheduling_state"]
        for task in self._statuses:
            self._set(task, last_line=f"Ray says {state}")

    def _start_all(self) -> None:
        """Everybody's address first: each TF_CONFIG has them all."""
        import ray  # noqa: PLC0415

        self._actors = {task: self._make_actor(task) for task in self._tasks}
        opened = {
            task: self._actors[task].open.remote() for task in self._plan.job.listening_tasks()
        }
        self._addresses = {
            task: ray.get(reference, timeout=_ANSWER_SECONDS) for task, reference in opened.items()
        }
        commands = make_task_commands(self._plan.job, self._addresses, self._plan.place.python)
        self._commands = {start.task: start for start in commands}
        for task in self._tasks:
            self._start(task)

    def _make_actor(self, task: Task) -> Any:
        import ray  # noqa: PLC0415
        from ray.util.scheduling_strategies import (  # noqa: PLC0415
            PlacementGroupSchedulingStrategy,
        )

        bundle = self._plan.bundle(task)
        options = {
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0),
            "memory": bundle.get("memory"),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._tasks.index(task)
            ),
        }
        return ray.remote(TaskActor).options(**options).remote()

    def _start(self, task: Task) -> None:
        import ray  # noqa: PLC0415

        place, start = self._plan.place, self._commands[task]
        environment = task_variables(self._plan.job, task.role, start.variables)
        started = self._actors[task].start.remote(
            start.command, environment, place.directory, place.grace_periods.grace
        )
        ray.get(started, timeout=_ANSWER_SECONDS)
        self._running.setdefault(task, 0)
        self._set(task, state=TaskState.RUNNING, last_line="")

    def _loop(self) -> None:
        started = time.monotonic()
        tick = max(_TICK_SECONDS, len(self._tasks) / 400)
        while self._running:
            self._read_all()
            now = time.monotonic()
            limit = self._plan.job.time_limit
            if limit and now - started > limit:
                self._settle(JobResult(1, f"over its time limit of {limit:g} s"))
            if self._outcome is not None:
                self._end_in_order(now)
            time.sleep(tick)

    def _read_all(self) -> None:
        """Fetch what everybody has printed since, and see who has ended."""
        import ray  # noqa: PLC0415
        from ray.exceptions import GetTimeoutError, RayActorError  # noqa: PLC0415

        asked = {
            task: self._actors[task].poll.remote(place) for task, place in self._running.items()
        }
        for task, reference in asked.items():
            try:
                printed, code = ray.get(reference, timeout=_ANSWER_SECONDS)
            except GetTimeoutError:
                continue  # Ray itself finds out whether the node is gone
            except RayActorError:
                self._lost(task)
                continue
            self._keep(task, printed)
            if code is not None:
                self._exited(task, code)

    def _keep(self, task: Task, printed: bytes) -> None:
        self._write(task, printed)
        self._running[task] += len(printed)
        lines = [line for line in _text(printed) if line.strip()]
        if lines:
            self._set(task, last_line=lines[-1])

    def _exited(self, task: Task, code: int) -> None:
        status = self._statuses[task]
        if task in self._ending or (self._outcome is not None and self._outcome.exit_code):
            self._gone(task, TaskState.ENDED, code)
        elif code == 0:
            self._gone(task, TaskState.DONE, code)
            if has_succeeded({each: status.state for each, status in self._statuses.items()}):
                self._settle(JobResult(0, "succeeded"))
        elif self._outcome is None and status.restarts < self._plan.job.restarts:
            number = f"restart {status.restarts + 1} of {self._plan.job.restarts}"
            self._note(task, f"{task} {describe_exit(code)}: {number}")
            self._set(task, restarts=status.restarts + 1)
            self._start(task)
        else:
            self._gone(task, TaskState.FAILED, code)
            reason = describe_failure(task, code, status.restarts)
            self._settle(JobResult(1, reason, task, self._last_lines(task)))

    def _lost(self, task: Task) -> None:
        """The actor is dead, by itself or with its node; its program ends with it."""
        import ray  # noqa: PLC0415
        from ray.exceptions import RayError  # noqa: PLC0415

        status = self._statuses[task]
        spent = status.restarts >= self._plan.job.restarts
        if self._outcome is not None or spent:
            self._gone(task, TaskState.FAILED if self._outcome is None else TaskState.ENDED, None)
            reason = f"{task} was lost with Ray's actor, which was killed or whose node is gone"
            self._settle(JobResult(1, reason, task, self._last_lines(task)))
            return
        number = f"restart {status.restarts + 1} of {self._plan.job.restarts}"
        self._note(task, f"{task} was lost with Ray's actor: {number}")
        address = self._addresses.get(task)
        try:
            self._actors[task] = self._make_actor(task)
            port = int(address.rpartition(":")[2]) if address else 0
            now_at = ray.get(self._actors[task].open.remote(port), timeout=_ANSWER_SECONDS)
        except RayError as error:
            now_at = f"nowhere ({type(error).__name__})"
        if address is not None and now_at != address:
            self._gone(task, TaskState.FAILED, None)
            reason = f"{task} was lost with its node: it was at {address}, and is now at {now_at}"
            self._settle(JobResult(1, f"{reason}; launch the job again", task))
            return
        self._running[task] = 0
        self._set(task, restarts=status.restarts + 1)
        self._start(task)

    def _end_in_order(self, now: float) -> None:
        """Each when its time has come."""
        assert self._outcome is not None
        grace_periods, failed = self._plan.place.grace_periods, self._outcome.exit_code != 0
        for task in list(self._running):
            left = time_left(task, self._running, failed, grace_periods)
            if now >= self._settled_at + left and task not in self._ending:
                self._ending.add(task)
                self._actors[task].end.remote()

    def _settle(self, result: JobResult) -> None:
        """The outcome, unless there is one: from now on tasks only end."""
        if self._outcome is None:
            self._settled_at = time.monotonic()
            self._outcome = result

    def _gone(self, task: Task, state: TaskState, code: int | None) -> None:
        del self._running[task]
        self._set(task, state=state, exit_code=code)

    def _note(self, task: Task, message: str) -> None:
        self._write(task, f"phalanx: {message}\n".encode())

    def _write(self, task: Task, content: bytes) -> None:
        """Only one thread writes; whoever reads does so at a place of its own."""
        self._logs[task].write(content)
        self._logs[task].flush()

    def _last_lines(self, task: Task) -> tuple[str, ...]:
        size = self._logs[task].tell()
        place = max(0, size - _TAIL_BYTES)
        return tuple(_text(os.pread(self._logs[task].fileno(), size, place))[-_LAST_LINES:])

    def _set(self, task: Task, **changes: Any) -> None:
        self._statuses[task] = replace(self._statuses[task], **changes)


def _text(printed: bytes) -> list[str]:
    return printed.decode(errors="replace").splitlines()
