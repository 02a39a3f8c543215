"""Supervises an elastic job inside its allocation, on the node of the batch script.

Each process is a step of its own: `srun` behind a relay. The state of the tasks is written to the
same files as batch.sh writes.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.cluster.job_environment import read_port
from phalanx.cluster.job_secret import with_secret
from phalanx.cluster.spec import Task
from phalanx.errors import JobError, PhalanxError
from phalanx.launch.backends.slurm.plan import SlurmOptions, is_heterogeneous, round_cpus
from phalanx.launch.base import JobResult, TaskState, TaskStatus
from phalanx.launch.job import Job
from phalanx.launch.processes import relay
from phalanx.launch.processes.generations import ElasticSize
from phalanx.launch.processes.handle import start
from phalanx.launch.processes.plan import ElasticPlan, ProcessPlan, TaskPlan
from phalanx.launch.processes.remote_tasks import add_relays, make_remote_command
from phalanx.launch.task_commands import make_task_commands
from phalanx.launch.termination import GracePeriods

_TICK_SECONDS = 0.5
_REPLY_SECONDS = 60.0
# Slurm's steps end a little after their processes.
_END_SECONDS = 5.0


@dataclass(frozen=True)
class Place:
    """The node of a task, and the component of a heterogeneous job that it belongs to."""

    node: str
    component: int | None = None


def find_places(
    job: Job, environ: Mapping[str, str], list_hosts: Callable[[str], Sequence[str]]
) -> dict[Task, Place]:
    """Return the place of each task of the largest generation.

    Args:
        job: The job.
        environ: The variables of the batch script.
        list_hosts: Returns the names in a node list such as `n[1-2],m`.
    """
    largest = job.largest()
    places: dict[Task, Place] = {}
    groups = [largest.all_tasks()]
    if is_heterogeneous(largest):
        tasks = largest.all_tasks()
        groups = [[t for t in tasks if t.role is role] for role in largest.all_counts()]
    for number, group in enumerate(groups):
        suffix = f"_HET_GROUP_{number}" if len(groups) > 1 else ""
        hosts = list_hosts(environ[f"SLURM_JOB_NODELIST{suffix}"])
        counts = parse_counts(environ[f"SLURM_TASKS_PER_NODE{suffix}"])
        nodes = [host for host, count in zip(hosts, counts, strict=True) for _ in range(count)]
        if len(nodes) < len(group):
            raise JobError(f"the allocation has room for {len(nodes)} tasks, which is too few")
        component = number if suffix else None
        places |= {task: Place(node, component) for task, node in zip(group, nodes, strict=False)}
    return places


def parse_counts(text: str) -> list[int]:
    """Return the number of tasks of each node, from SLURM_TASKS_PER_NODE.

    >>> parse_counts("2(x2),1")
    [2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise JobError(f"SLURM_TASKS_PER_NODE is {text!r}: expected numbers, as in 2(x2),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def plan_processes(
    job: Job, options: SlurmOptions, places: Mapping[Task, Place], port: int, run_id: str
) -> ProcessPlan:
    """Plan a step for each task. Task k of a node listens on port + k."""
    used: Counter[str] = Counter()
    addresses = {}
    for slot in job.largest().listening_tasks():
        node = places[slot].node
        addresses[slot] = f"{node}:{port + used[node]}"
        used[node] += 1
    make_tasks = partial(_plan_members, job, options, places, addresses)
    directory = Path(options.log_dir)
    periods = options.grace_periods
    return add_relays(
        ProcessPlan(
            make_tasks(job.trainers()),
            run_id,
            job.restarts,
            replace(periods, grace=periods.grace + _END_SECONDS),
            progress_file=str(directory / "progress"),
            elastic=ElasticPlan(
                ElasticSize.of_job(job, options.rejoin_seconds), make_tasks, directory
            ),
        )
    )


def _plan_members(
    job: Job,
    options: SlurmOptions,
    places: Mapping[Task, Place],
    addresses: Mapping[Task, str],
    members: Sequence[Task],
) -> tuple[TaskPlan, ...]:
    """Plan all tasks of a job whose trainers run in these slots, the chief's first."""
    generation, slots = job.with_members(members)
    ranked = {task: addresses[slots[task]] for task in generation.listening_tasks()}
    directory = Path(options.log_dir)
    grace = options.grace_periods.grace
    return tuple(
        TaskPlan(
            slots[start.task],
            (
                *_make_step(job, slots[start.task], places[slots[start.task]]),
                *make_remote_command(generation, start, options.directory, grace, None),
            ),
            relay.mark(job.environment),
            directory / f"{slots[start.task]}.log",
            secrets=relay.mark(job.secrets),
            rank=start.task,
            progress_file=directory / "progress",
        )
        for start in make_task_commands(generation, ranked, options.python)
    )


def _make_step(job: Job, slot: Task, place: Place) -> list[str]:
    needs = job.needs(slot.role)
    cpus = round_cpus(needs)
    return [
        "srun",
        *([] if place.component is None else [f"--het-group={place.component}"]),
        *("--nodes=1", "--ntasks=1", f"--nodelist={place.node}", f"--job-name={slot}"),
        *("--exact", "--mem=0", "--quiet"),
        *([f"--cpus-per-task={cpus}"] if cpus else []),
        *([f"--gpus-per-task={needs.gpus}"] if needs.gpus else []),
    ]


class _StateFiles:
    """Writes the state of each task for `phalanx status`, and what happens to the batch log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def output(self, task: Task, lines: list[str]) -> None: ...

    def changed(self, status: TaskStatus) -> None:
        code = "" if status.exit_code is None else f" {status.exit_code % 256}"
        text = f"{status.state.value} {status.restarts}{code}\n"
        (self._directory / f"{status.task}.state").write_text(text)

    def note(self, message: str) -> None:
        print(f"phalanx: {message}", flush=True)


def supervise(content: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """Run the job to its end, and return the exit code of the batch script."""
    job = Job.load(content["job"])
    found = dict(content["options"])
    found["grace_periods"] = GracePeriods(**found["grace_periods"])
    options = SlurmOptions(**found)
    directory = Path(options.log_dir)
    number = int(environ["SLURM_JOB_ID"])
    port = read_port({**environ, **job.environment}, 10000 + number % 340 * 64)
    plan = plan_processes(
        job, options, find_places(job, environ, _list_hosts), port, uuid.uuid4().hex
    )
    files = _StateFiles(directory)
    for slot in job.largest().all_tasks():
        files.changed(TaskStatus(slot, TaskState.WAITING))
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    handle = start(plan, with_secret(environ), files)
    while (result := handle.wait(_TICK_SECONDS)) is None:
        if signals:
            handle.cancel(JobResult(143, "ended by SIGTERM"))
    if signals and options.requeue and not (directory / "cancelled").exists():
        files.note("ended by SIGTERM; the job is requeued")
        requeue = ["scontrol", "requeue", str(number)]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if not subprocess.run(requeue, timeout=_REPLY_SECONDS, check=False).returncode:
                return 0
    return _finish(directory, result)


def _list_hosts(nodes: str) -> list[str]:
    command = ["scontrol", "show", "hostnames", nodes]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_REPLY_SECONDS, check=True
    )
    return done.stdout.split()


def _finish(directory: Path, result: JobResult) -> int:
    (directory / "result").write_text(f"{result.exit_code} {result.reason}\n")
    print(f"phalanx: {result.describe()}", flush=True)
    return result.exit_code


def main() -> int:
    """Read the job from standard input, and run it."""
    os.umask(0o077)
    content = json.load(sys.stdin)
    try:
        return supervise(content, os.environ)
    except PhalanxError as error:
        return _finish(Path(content["options"]["log_dir"]), JobResult(error.exit_code, str(error)))


if __name__ == "__main__":
    sys.exit(main())
