"""From a job to a batch script: a pure function. What never changes of it is in batch.sh."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files

from phalanx.cluster.job_environment import PORT_VARIABLE
from phalanx.cluster.spec import Role
from phalanx.launch.job import Job, Resources
from phalanx.launch.placeholders import fill_with
from phalanx.launch.task_commands import DEFAULTS, evaluator_variables, thread_variables
from phalanx.launch.termination import GracePeriods

_MIB = 1 << 20


@dataclass(frozen=True)
class SlurmOptions:
    """Where in the cluster a job goes, and how it is treated there."""

    directory: str
    log_dir: str
    python: str
    partition: str | None = None
    account: str | None = None
    nodes: int | None = None
    requeue: bool = False
    notice: int = 60
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlurmPlan:
    """The script for `sbatch`. Inside an allocation `bash` runs it as it is."""

    name: str
    script: str
    log_dir: str
    counts: tuple[tuple[Role, int], ...]

    def render(self) -> str:
        """The script itself."""
        return self.script


def plan_script(job: Job, place: SlurmOptions) -> SlurmPlan:
    """The script of a job."""
    job.validate()
    counts = job.all_counts()
    heterogeneous = len({job.needs(role) for role in counts}) > 1
    lines = ["#!/bin/bash", *_directives(job, place, heterogeneous), ""]
    lines += _settings(job, place, heterogeneous)
    lines += ["", "run_program() {", f"    with_environment {_command(job, place)}", "}", ""]
    lines += [_environment(job), ""]
    body = files("phalanx.launch.backends.slurm").joinpath("batch.sh").read_text()
    script = "\n".join(lines) + "\n" + body.rstrip("\n")
    return SlurmPlan(job.name, script, place.log_dir, tuple(counts.items()))


def _directives(job: Job, place: SlurmOptions, heterogeneous: bool) -> Iterator[str]:
    """What sbatch reads. A heterogeneous job has a component for each role."""
    options = [f"--job-name={job.name}", f"--output={place.log_dir}/batch.log"]
    options += ["--open-mode=append", f"--chdir={place.directory}"]
    options += [f"--signal=B:TERM@{place.notice}"]
    options += ["--requeue" if place.requeue else "--no-requeue"]
    shared = []
    if place.partition:
        shared.append(f"--partition={place.partition}")
    if place.account:
        shared.append(f"--account={place.account}")
    if job.time_limit:
        shared.append(f"--time={math.ceil(job.time_limit / 60)}")
    shared += place.options
    if place.nodes:
        shared.append(f"--nodes={place.nodes}")
    counts = job.all_counts()
    components = (
        [(count, job.needs(role)) for role, count in counts.items()]
        if heterogeneous
        else [(sum(counts.values()), job.needs(next(iter(counts))))]
    )
    for number, (count, needs) in enumerate(components):
        if number:
            yield "#SBATCH hetjob"
        for option in [*([] if number else options), *shared, *_amounts(count, needs)]:
            yield f"#SBATCH {shlex.quote(option)}"


def _amounts(count: int, needs: Resources) -> Iterator[str]:
    cpus = _cpus(needs)
    yield f"--ntasks={count}"
    if cpus:
        yield f"--cpus-per-task={cpus}"
    if needs.memory:
        yield f"--mem-per-cpu={math.ceil(needs.memory / (cpus or 1) / _MIB)}M"
    if needs.gpus:
        yield f"--gpus-per-task={needs.gpus}"


def _cpus(needs: Resources) -> int | None:
    """Slurm gives whole processors."""
    return math.ceil(needs.cpus) if needs.cpus else None


def _settings(job: Job, place: SlurmOptions, heterogeneous: bool) -> Iterator[str]:
    """What batch.sh is told."""
    counts = job.all_counts()
    model_dir = f', "model_dir": {json.dumps(job.model_dir)}' if job.model_dir else ""
    cpus = {role: _cpus(job.needs(role)) for role in counts}
    gpus = {role: job.needs(role).gpus or None for role in counts}
    yield f"roles=({' '.join(counts)})"
    yield f"declare -A count=({_pairs(counts)}) cpus=({_pairs(cpus)}) gpus=({_pairs(gpus)})"
    yield f"heterogeneous={'yes' if heterogeneous else ''}"
    yield f"log_dir={shlex.quote(place.log_dir)}"
    yield f"model_dir={shlex.quote(model_dir)}"
    if job.data_workers:
        yield f"python={shlex.quote(place.python)}"
    yield f"restarts={job.restarts} requeue={'yes' if place.requeue else ''}"
    yield (
        f"grace={place.grace_periods.grace:.0f} linger={place.grace_periods.linger:.0f} "
        f"evaluator_linger={place.grace_periods.evaluator_linger:.0f}"
    )
    # Threads are the same for all: a variable of the script reaches every step.
    threads = {each for each in cpus.values() if each}
    limits = thread_variables(threads.pop()) if len(threads) == 1 else {}
    defaults = {**DEFAULTS, **limits, **evaluator_variables(job)}
    if PORT_VARIABLE in job.environment:
        defaults[PORT_VARIABLE] = job.environment[PORT_VARIABLE]
    for name, text in defaults.items():
        yield f"export {name}={shlex.quote(text)}"


def _environment(job: Job) -> str:
    """The user's variables reach the program alone: any name may be one of the script's own."""
    pairs = [f"{name}={text}" for name, text in job.environment.items()]
    return f'with_environment() {{ {shlex.join(["env", *pairs])} "$@"; }}'


def _pairs(values: dict[Role, int] | dict[Role, int | None]) -> str:
    return " ".join(f"[{role}]={value}" for role, value in values.items() if value)


def _command(job: Job, place: SlurmOptions) -> str:
    """The program's command line; what differs from task to task is a variable of the shell."""
    start = job.program.command(place.python)
    filled = (
        fill_with(each, lambda name: f'"${name}"', shlex.quote) for each in job.program.arguments
    )
    return " ".join([shlex.join(start), *filled])
