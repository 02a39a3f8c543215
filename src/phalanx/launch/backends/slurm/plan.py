"""Plans the batch script of a job. The part that is the same for all jobs is in batch.sh.

The script of an elastic job runs elastic.py instead.
"""

import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files

from phalanx.cluster.job_environment import PORT_VARIABLE, grace_variables, restart_variables
from phalanx.cluster.spec import Role
from phalanx.errors import JobError
from phalanx.launch.guarded import guard_prefix
from phalanx.launch.job import Job, Resources
from phalanx.launch.placeholders import fill_with
from phalanx.launch.processes.generations import REJOIN_SECONDS
from phalanx.launch.task_commands import (
    DEFAULTS,
    RENAME_CHIEF,
    evaluator_variables,
    tf_config_settings,
    thread_variables,
)
from phalanx.launch.termination import GracePeriods
from phalanx.launch.values import has_control_characters

_MIB = 1 << 20


@dataclass(frozen=True)
class SlurmOptions:
    directory: str
    log_dir: str
    python: str
    partition: str | None = None
    account: str | None = None
    nodes: int | None = None
    requeue: bool = False
    notice: int = 60
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    sbatch_options: tuple[str, ...] = ()
    rejoin_seconds: float = REJOIN_SECONDS


@dataclass(frozen=True)
class SlurmPlan:
    """The script for `sbatch`. Inside an allocation, `bash` can run it."""

    name: str
    script: str
    log_dir: str
    counts: tuple[tuple[Role, int], ...]
    secrets: tuple[str, ...] = ()

    def render(self) -> str:
        return self.script


def plan_script(job: Job, options: SlurmOptions) -> SlurmPlan:
    job.validate(can_scale=True)
    if job.is_elastic:
        return _plan_elastic_script(job, options)
    counts = job.all_counts()
    heterogeneous = is_heterogeneous(job)
    lines = ["#!/bin/bash", *_directives(job, options), ""]
    lines += _settings(job, options, heterogeneous)
    rename = RENAME_CHIEF.splitlines() if job.master else []
    lines += ["", "run_program() {", *(f"    {line}" for line in rename)]
    lines += [f"    with_environment {_command(job, options)}", "}", ""]
    lines += [_environment(job), ""]
    body = files("phalanx.launch.backends.slurm").joinpath("batch.sh").read_text()
    script = "\n".join(lines) + "\n" + body.rstrip("\n")
    return SlurmPlan(
        job.name, script, options.log_dir, tuple(counts.items()), tuple(job.secrets.values())
    )


def _plan_elastic_script(job: Job, options: SlurmOptions) -> SlurmPlan:
    """Plan a script that runs a supervisor on its node, with a step for each process."""
    largest = job.largest()
    # The others can go on without a node that is lost.
    shared = replace(options, sbatch_options=(*options.sbatch_options, "--no-kill"))
    content = {"job": job.dump(), "options": asdict(options)}
    python, result = shlex.quote(options.python), shlex.quote(f"{options.log_dir}/result")
    lines = [
        "#!/bin/bash",
        *_directives(largest, shared),
        "",
        f"mkdir -p -m 700 {shlex.quote(options.log_dir)}",
        f"if ! {python} -P -c 'import phalanx.launch'; then",
        f"    echo 2 an elastic job needs Phalanx in {python} > {result}",
        "    exit 2",
        "fi",
        f"exec {python} -P -m phalanx.launch.backends.slurm.elastic <<'END'",
        json.dumps(content, indent=1),
        "END",
    ]
    counts = tuple(largest.all_counts().items())
    script = "\n".join(lines) + "\n"
    return SlurmPlan(job.name, script, options.log_dir, counts, tuple(job.secrets.values()))


def is_heterogeneous(job: Job) -> bool:
    """Whether the roles need different resources, and each its own component of a job."""
    return len({job.needs(role) for role in job.all_counts()}) > 1


def _directives(job: Job, options: SlurmOptions) -> Iterator[str]:
    """Yield the #SBATCH lines. A heterogeneous job has a component for each role."""
    directives = [f"--job-name={job.name}", f"--output={_as_pattern(options.log_dir)}/batch.log"]
    directives += ["--open-mode=append", f"--chdir={options.directory}"]
    directives += [f"--signal=B:TERM@{options.notice}"]
    directives += ["--requeue" if options.requeue else "--no-requeue"]
    minutes = math.ceil((job.time_limit or 0) / 60)
    values = {"partition": options.partition, "account": options.account, "time": minutes}
    shared = [f"--{name}={value}" for name, value in values.items() if value]
    shared += options.sbatch_options
    if options.nodes:
        shared.append(f"--nodes={options.nodes}")
    counts = job.all_counts()
    components = (
        [(count, job.needs(role)) for role, count in counts.items()]
        if is_heterogeneous(job)
        else [(sum(counts.values()), job.needs(next(iter(counts))))]
    )
    for number, (count, needs) in enumerate(components):
        if number:
            yield "#SBATCH hetjob"
        for each in [*([] if number else directives), *shared, *_request_resources(count, needs)]:
            # A directive is a comment: what follows a line break would be a command.
            if has_control_characters(each):
                raise JobError(f"{each!r} has a line break or another control character")
            yield f"#SBATCH {shlex.quote(each)}"


def _as_pattern(path: str) -> str:
    """Escape a path in which Slurm would replace %j, %u and others."""
    if "\\" in path:
        raise JobError(
            f"Slurm cannot write to {path}, which has a backslash: choose another --log-dir"
        )
    return path.replace("%", "%%")


def _request_resources(count: int, needs: Resources) -> Iterator[str]:
    cpus = round_cpus(needs)
    yield f"--ntasks={count}"
    if cpus:
        yield f"--cpus-per-task={cpus}"
    if needs.memory:
        yield f"--mem-per-cpu={math.ceil(needs.memory / (cpus or 1) / _MIB)}M"
    if needs.gpus:
        yield f"--gpus-per-task={needs.gpus}"


def round_cpus(needs: Resources) -> int | None:
    """Round up, because Slurm allocates whole processors."""
    return math.ceil(needs.cpus) if needs.cpus else None


def _settings(job: Job, options: SlurmOptions, heterogeneous: bool) -> Iterator[str]:
    """Yield the variables that batch.sh reads."""
    counts = job.all_counts()
    cpus = {role: round_cpus(job.needs(role)) for role in counts}
    gpus = {role: job.needs(role).gpus or None for role in counts}
    yield f"roles=({' '.join(counts)})"
    yield f"declare -A count=({_pairs(counts)}) cpus=({_pairs(cpus)}) gpus=({_pairs(gpus)})"
    yield f"heterogeneous={'yes' if heterogeneous else ''}"
    yield f"log_dir={shlex.quote(options.log_dir)}"
    yield f"model_dir={shlex.quote(tf_config_settings(job))}"
    if job.data_workers:
        yield f"python={shlex.quote(options.python)}"
    yield f"restarts={job.restarts} requeue={'yes' if options.requeue else ''}"
    yield (
        f"grace={options.grace_periods.grace:.0f} linger={options.grace_periods.linger:.0f} "
        f"evaluator_linger={options.grace_periods.evaluator_linger:.0f}"
    )
    # A variable of the script reaches every step, so all roles must have as many threads.
    threads = {each for each in cpus.values() if each}
    limits = thread_variables(threads.pop()) if len(threads) == 1 else {}
    rules = restart_variables(job.restarts) | grace_variables(options.grace_periods.grace)
    defaults = {**DEFAULTS, **limits, **rules, **evaluator_variables(job)}
    if PORT_VARIABLE in job.environment:
        defaults[PORT_VARIABLE] = job.environment[PORT_VARIABLE]
    for name, text in defaults.items():
        yield f"export {name}={shlex.quote(text)}"


def _environment(job: Job) -> str:
    """Set the user's variables for the program only: the script may use the same names."""
    # Exported in a subshell: arguments of `env` would be visible to all users of the node.
    lines = [f"export {name}={shlex.quote(text)}" for name, text in job.environment.items()]
    for name, path in job.secrets.items():
        lines.append(f"{name}=$(cat {shlex.quote(path)}) || exit 1")
        lines.append(f"export {name}")
    lines.append('exec "$@"')
    return "\n".join(["with_environment() (", *(f"    {line}" for line in lines), ")"])


def _pairs(values: dict[Role, int] | dict[Role, int | None]) -> str:
    return " ".join(f"[{role}]={value}" for role, value in values.items() if value)


def _command(job: Job, options: SlurmOptions) -> str:
    """Return the program's command line, with shell variables for what differs by task."""
    start = (*guard_prefix(job, options.python), *job.program.command(options.python))
    filled = (
        fill_with(each, lambda name: f'"${name}"', shlex.quote) for each in job.program.arguments
    )
    return " ".join([shlex.join(start), *filled])
