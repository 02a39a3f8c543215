"""The actors of a job: one for each task, and one that supervises them as termination.py says.

The latter outlives the command that created it. When the job is over, it releases all resources but
itself: it keeps the output and the exit codes of the tasks until `phalanx cancel`. Its methods
return plain data, because the caller may have another version of the classes.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from phalanx.cluster import job_secret
from phalanx.cluster.progress import PRINTED, PROGRESS_VARIABLE, read_progress
from phalanx.cluster.spec import Task
from phalanx.launch.backends.ray.plan import RayObject, RayPlan
from phalanx.launch.base import JobResult, TaskState, TaskStatus
from phalanx.launch.processes.progress_lines import ProgressLines
from phalanx.launch.processes.restarts import (
    RestartPolicy,
    TaskFailure,
    find_exception,
    names_lost_peer,
)
from phalanx.launch.processes.stdin_guard import guard_stdin
from phalanx.launch.secrets import read_secret
from phalanx.launch.task_commands import TaskCommand, make_task_commands, task_variables
from phalanx.launch.termination import (
    decode_exit_code,
    has_succeeded,
    time_left,
)

_PLACEMENT_SECONDS = 2.0
_TICK_SECONDS = 0.25
_RESPONSE_SECONDS = 60.0
_LAST_LINES = 20
_TAIL_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20


class TaskActor:
    """Runs one task on its node. The output is in an unnamed file, which the actor owns."""

    def __init__(self) -> None:
        self._port: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - the actor owns it

    def open(self, port: int = 0) -> str:
        """Reserve a port of this node, any free one or the given one, and return the address."""
        import ray  # noqa: PLC0415

        host = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        reserved = socket.socket(family, socket.SOCK_STREAM)
        if port:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", port))
        # The socket does not listen, so only the task can still bind the port.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port = reserved
        address = f"[{host}]" if ":" in host else host
        return f"{address}:{reserved.getsockname()[1]}"

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        secrets: Mapping[str, str],
        directory: str,
        grace: float,
    ) -> None:
        """Start or restart the program. `python` is the one that Ray itself runs in."""
        values = {name: read_secret(path) for name, path in secrets.items()}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self._process = subprocess.Popen(
            [*guard_stdin(directory, grace), *command],
            env={**os.environ, "PATH": path, **environment, **values},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def poll(self, offset: int) -> tuple[bytes, int | None]:
        """Return the output from an offset on and, once all of it was returned, the exit code."""
        assert self._process is not None
        code = self._process.poll()
        output = os.pread(self._output.fileno(), _CHUNK_BYTES, offset)
        if code is None or output:
            return output, None
        return output, decode_exit_code(code)

    def end(self) -> None:
        """End the program with SIGTERM and, after the grace period, SIGKILL."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


class JobActor:
    """Supervises one job: its placement group, the actors of its tasks, and their states."""

    def __init__(self, plan: RayPlan) -> None:
        import ray  # noqa: PLC0415 - the launcher imports this module, perhaps without Ray

        self._ray: RayObject = ray
        self._plan = plan
        self._tasks = plan.job.all_tasks()
        self._statuses = {task: TaskStatus(task, TaskState.WAITING) for task in self._tasks}
        self._logs: dict[Task, IO[bytes]] = {}
        self._actors: dict[Task, RayObject] = {}
        # How many bytes of output were read from each running task.
        self._offsets: dict[Task, int] = {}
        self._signalled: set[Task] = set()
        self._policy = RestartPolicy(plan.job.restarts, has_servers=plan.job.ps > 0)
        self._directory = tempfile.TemporaryDirectory()
        self._progress_file = Path(self._directory.name) / "progress"
        self._progress = {task: ProgressLines(self._progress_file) for task in self._tasks}
        # When tasks that have failed are started again, and which of them need another actor.
        self._delayed: dict[Task, float] = {}
        self._lost: set[Task] = set()
        self._group: RayObject = None
        self._addresses: Mapping[Task, str] = {}
        self._starts: Mapping[Task, TaskCommand] = {}
        self._secret = job_secret.make_secret()
        self._settled_at = 0.0
        self._outcome: JobResult | None = None
        self._is_over = False

    def start(self) -> str:
        """Request the resources, and supervise the job in a thread.

        Returns why the cluster can never provide the resources, or an empty text.
        """
        bundles = [self._plan.bundle(task) for task in self._tasks]
        self._group = self._ray.util.placement_group(
            bundles, strategy=self._plan.options.strategy.name
        )
        if not self._group.wait(_PLACEMENT_SECONDS) and not self._plan.options.autoscaling:
            problem = self._find_problem()
            if problem:
                self._ray.util.remove_placement_group(self._group)
                return problem
        self._logs = {task: tempfile.TemporaryFile() for task in self._tasks}  # noqa: SIM115
        threading.Thread(target=self._run, daemon=True).start()
        return ""

    def state(self) -> dict[str, Any]:
        """Return the status of every task and, once the job is over, its result."""
        outcome = self._outcome if self._is_over else None
        return {
            "tasks": [each.dump() for each in list(self._statuses.values())],
            "result": outcome and outcome.dump(),
        }

    def read(self, task: str, offset: int) -> tuple[bytes, bool]:
        """Return the output of a task from an offset on, and whether it is complete."""
        over = self._is_over
        log = next(log for each, log in self._logs.items() if str(each) == task)
        output = os.pread(log.fileno(), _CHUNK_BYTES, offset)
        return output, over and not output

    def cancel(self) -> None:
        self._settle(JobResult(1, "cancelled"))

    def _find_problem(self) -> str:
        """Return why the job can never be placed; empty if it only has to wait for other jobs."""
        wanted: dict[str, float] = {}
        for task in self._tasks:
            for name, amount in self._plan.bundle(task).items():
                wanted[name] = wanted.get(name, 0) + amount
        available = self._ray.cluster_resources()
        for name, amount in wanted.items():
            if amount > available.get(name, 0):
                total = available.get(name, 0)
                return f"the job needs {amount:g} {name}, and the cluster has {total:g}"
        state = self._ray.util.placement_group_table(self._group)["stats"]["scheduling_state"]
        return "no node has the resources of a task" if state == "INFEASIBLE" else ""

    def _run(self) -> None:
        """Run the job to its end, and release its resources whatever happens."""
        try:
            while self._outcome is None and not self._group.wait(_PLACEMENT_SECONDS):
                self._note_placement_state()
            if self._outcome is None:
                self._start_all()
                self._loop()
        except Exception as error:  # the result must say why
            self._outcome = JobResult(1, f"the actor that supervises the job failed: {error!r}")
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.util.remove_placement_group(self._group)
        for task, status in self._statuses.items():
            if status.state in (TaskState.WAITING, TaskState.RUNNING):
                self._set(task, state=TaskState.ENDED)
        self._is_over = True

    def _note_placement_state(self) -> None:
        state = self._ray.util.placement_group_table(self._group)["stats"]["scheduling_state"]
        for task in self._statuses:
            self._set(task, last_line=f"Ray reports {state}")

    def _start_all(self) -> None:
        """Create all actors first, because each TF_CONFIG has the addresses of all tasks."""
        self._actors = {task: self._make_actor(task) for task in self._tasks}
        opened = {
            task: self._actors[task].open.remote() for task in self._plan.job.listening_tasks()
        }
        self._addresses = {
            task: self._ray.get(reference, timeout=_RESPONSE_SECONDS)
            for task, reference in opened.items()
        }
        starts = make_task_commands(self._plan.job, self._addresses, self._plan.options.python)
        self._starts = {start.task: start for start in starts}
        for task in self._tasks:
            self._start(task)

    def _make_actor(self, task: Task) -> RayObject:
        bundle = self._plan.bundle(task)
        strategies = self._ray.util.scheduling_strategies
        options = {
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0),
            "memory": bundle.get("memory"),
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._tasks.index(task)
            ),
        }
        return self._ray.remote(TaskActor).options(**options).remote()

    def _start(self, task: Task) -> None:
        options, start = self._plan.options, self._starts[task]
        grace = options.grace_periods.grace
        environment = task_variables(self._plan.job, task.role, start.variables, grace=grace)
        environment.setdefault(job_secret.VARIABLE, self._secret)
        environment[PROGRESS_VARIABLE] = PRINTED
        started = self._actors[task].start.remote(
            start.command,
            environment,
            self._plan.job.secrets,
            options.directory,
            grace,
        )
        self._ray.get(started, timeout=_RESPONSE_SECONDS)
        self._offsets.setdefault(task, 0)
        self._policy.start(task, self._read_step(), time.monotonic())
        self._set(task, state=TaskState.RUNNING, last_line="")

    def _loop(self) -> None:
        started = time.monotonic()
        tick = max(_TICK_SECONDS, len(self._tasks) / 400)
        while self._offsets:
            self._read_all()
            now = time.monotonic()
            limit = self._plan.job.time_limit
            if limit and now - started > limit:
                self._settle(JobResult(1, f"over its time limit of {limit:g} s"))
            if self._outcome is None:
                self._start_delayed(now)
            else:
                self._drop_delayed()
                self._end_in_order(now)
            time.sleep(tick)

    def _read_all(self) -> None:
        references = {
            task: self._actors[task].poll.remote(offset)
            for task, offset in self._offsets.items()
            if task not in self._delayed
        }
        for task, reference in references.items():
            try:
                output, code = self._ray.get(reference, timeout=_RESPONSE_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                continue  # Ray itself detects a lost node
            except self._ray.exceptions.RayActorError:
                self._handle_loss(task)
                continue
            self._store_output(task, output)
            if code is not None:
                self._handle_exit(task, code)

    def _store_output(self, task: Task, output: bytes) -> None:
        self._offsets[task] += len(output)
        output = self._progress[task].take(output)
        self._write(task, output)
        lines = [line for line in _split_lines(output) if line.strip()]
        if lines:
            self._set(task, last_line=lines[-1])

    def _handle_exit(self, task: Task, code: int) -> None:
        if task in self._signalled or (self._outcome is not None and self._outcome.exit_code):
            self._stop_reading(task, TaskState.ENDED, code)
        elif code == 0:
            self._stop_reading(task, TaskState.DONE, code)
            if has_succeeded({each: status.state for each, status in self._statuses.items()}):
                self._settle(JobResult(0, "succeeded"))
        elif self._outcome is None:
            lines = self._last_lines(task)
            error, lost_peer = find_exception(lines), names_lost_peer(lines)
            failure = TaskFailure(task, code, error, self._read_step(), lost_peer=lost_peer)
            self._handle_failure(task, failure)
        else:
            self._stop_reading(task, TaskState.FAILED, code)

    def _handle_failure(self, task: Task, failure: TaskFailure) -> None:
        """Start a task again, now or later, or fail the job, by the rules in restarts.py."""
        now = time.monotonic()
        decision = self._policy.decide(failure, now)
        code = None if failure.hang else failure.code
        if decision.fails_job:
            self._stop_reading(task, TaskState.FAILED, code)
            self._settle(JobResult(1, decision.reason, task, self._last_lines(task)))
            return
        self._note(task, decision.reason)
        if decision.delay is None:
            # The job goes on without it.
            self._stop_reading(task, TaskState.FAILED, code)
            return
        self._set(task, state=TaskState.WAITING)
        self._delayed[task] = now + decision.delay
        self._start_delayed(now)

    def _handle_loss(self, task: Task) -> None:
        """Note that the actor of a task has died, alone or with its node, and the program too."""
        if self._outcome is not None:
            self._stop_reading(task, TaskState.ENDED, None)
            return
        self._lost.add(task)
        failure = TaskFailure(task, -signal.SIGKILL, hang="was lost with its Ray actor")
        self._handle_failure(task, failure)

    def _read_step(self) -> int | None:
        progress = read_progress(self._progress_file)
        return progress.step if progress else None

    def _start_delayed(self, now: float) -> None:
        for task in [task for task, at in self._delayed.items() if now >= at]:
            del self._delayed[task]
            self._set(task, restarts=self._statuses[task].restarts + 1)
            try:
                if task not in self._lost or self._replace_actor(task):
                    self._start(task)
            except self._ray.exceptions.RayActorError:
                self._handle_loss(task)

    def _drop_delayed(self) -> None:
        for task in self._delayed:
            self._stop_reading(task, TaskState.ENDED, None)
        self._delayed.clear()

    def _replace_actor(self, task: Task) -> bool:
        """Make another actor at the same address; without that, the job has failed."""
        self._lost.discard(task)
        address = self._addresses.get(task)
        try:
            self._actors[task] = self._make_actor(task)
            port = int(address.rpartition(":")[2]) if address else 0
            new_address = self._ray.get(
                self._actors[task].open.remote(port), timeout=_RESPONSE_SECONDS
            )
        except self._ray.exceptions.RayError as error:
            new_address = f"no address ({type(error).__name__})"
        self._offsets[task] = 0
        if address is None or new_address == address:
            return True
        self._stop_reading(task, TaskState.FAILED, None)
        reason = f"{task} was lost with its node: it had {address}, and now has {new_address}"
        self._settle(JobResult(1, f"{reason}; launch the job again", task))
        return False

    def _end_in_order(self, now: float) -> None:
        assert self._outcome is not None
        grace_periods, failed = self._plan.options.grace_periods, self._outcome.exit_code != 0
        for task in list(self._offsets):
            left = time_left(task, self._offsets, failed, grace_periods)
            if now >= self._settled_at + left and task not in self._signalled:
                self._signalled.add(task)
                self._actors[task].end.remote()

    def _settle(self, result: JobResult) -> None:
        """Set the outcome, unless it is set. From now on tasks are only ended."""
        if self._outcome is None:
            self._settled_at = time.monotonic()
            self._outcome = result

    def _stop_reading(self, task: Task, state: TaskState, code: int | None) -> None:
        del self._offsets[task]
        self._set(task, state=state, exit_code=code)

    def _note(self, task: Task, message: str) -> None:
        self._write(task, f"phalanx: {message}\n".encode())

    def _write(self, task: Task, content: bytes) -> None:
        """Append to a log. One thread writes; readers use offsets of their own."""
        self._logs[task].write(content)
        self._logs[task].flush()

    def _last_lines(self, task: Task) -> tuple[str, ...]:
        size = self._logs[task].tell()
        tail = os.pread(self._logs[task].fileno(), size, max(0, size - _TAIL_BYTES))
        return tuple(_split_lines(tail)[-_LAST_LINES:])

    def _set(self, task: Task, **changes: Any) -> None:
        self._statuses[task] = replace(self._statuses[task], **changes)


def _split_lines(output: bytes) -> list[str]:
    return output.decode(errors="replace").splitlines()
