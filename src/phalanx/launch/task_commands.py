"""What each task is started with, on every backend: its command, variables and GPUs."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phalanx.cluster.job_environment import (
    DATA_SERVICE_VARIABLE,
    grace_variables,
    restart_variables,
    shape_variables,
)
from phalanx.cluster.lint import find_address_problem
from phalanx.cluster.spec import Cluster, Role, Task, split_address
from phalanx.cluster.tf_config import VARIABLE, Environment, dump_each
from phalanx.errors import JobError
from phalanx.launch.guarded import guard_data_task, guard_prefix
from phalanx.launch.job import Job
from phalanx.launch.placeholders import fill

DEFAULTS: Mapping[str, str] = {
    # oneDNN nearly doubles the speed of training on many CPUs, but is off by default.
    "TF_ENABLE_ONEDNN_OPTS": "1",
    # Warnings and errors only: TensorFlow's info messages would bury the program's own output.
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "PYTHONUNBUFFERED": "1",
}

# Linux limits a variable or an argument to 128 KiB; the rest is left for the text around it.
_MAX_TF_CONFIG_BYTES = (128 << 10) - 4096
TENSORBOARD_PORT = 6006
_DISPATCHER = Task(Role.DISPATCHER)

RENAME_CHIEF = """TF_CONFIG=$(printf %s "$TF_CONFIG" | \\
    sed 's/"chief": *\\[/"master": [/; s/"type": *"chief"/"type": "master"/')
"""
"""The lines of a script that call the chief of an exported TF_CONFIG `master`."""


@dataclass(frozen=True)
class TaskCommand:
    """The command of a task, and the variables that differ from task to task."""

    task: Task
    command: tuple[str, ...]
    variables: Mapping[str, str]


def make_task_commands(
    job: Job, addresses: Mapping[Task, str], python: str, *, guarded: bool = True
) -> Iterator[TaskCommand]:
    """Yield the command of each task, from the addresses of `job.listening_tasks()`.

    With `guarded`, the commands start with `phalanx guard`.
    """
    for task, address in addresses.items():
        problem = find_address_problem(f"the address of {task}", address)
        if problem:
            raise JobError(str(problem))
    cluster = job.cluster(addresses)
    program = job.program.command(python)
    guard = guard_prefix(job, python) if guarded else ()
    common = evaluator_variables(job)
    if _DISPATCHER in addresses:
        common[DATA_SERVICE_VARIABLE] = addresses[_DISPATCHER]
    for task, text in _tf_config_variables(cluster, job):
        arguments = (fill(argument, task, cluster) for argument in job.program.arguments)
        yield TaskCommand(task, (*guard, *program, *arguments), {VARIABLE: text, **common})
    hosts = [split_address(address)[0] for address in addresses.values()]
    for task in job.data_tasks():
        host = split_address(addresses[task])[0]
        guard = guard_data_task(job, python, host, hosts) if guarded else ()
        yield TaskCommand(task, (*guard, *_data_service_command(task, addresses, python)), {})


def _data_service_command(
    task: Task, addresses: Mapping[Task, str], python: str
) -> tuple[str, ...]:
    host, _, port = addresses[task].rpartition(":")
    command = (python, "-m", "phalanx", "data-service")
    if task == _DISPATCHER:
        return (*command, "dispatcher", f"--port={port}")
    return (*command, "worker", addresses[_DISPATCHER], f"--host={host}", f"--port={port}")


def tensorboard_command(job: Job, python: str, port: int = TENSORBOARD_PORT) -> list[str]:
    """Return the command that shows the job's model directory, on all addresses of its host."""
    if not job.model_dir:
        raise JobError("TensorBoard has nothing to show without --model-dir")
    command = [python, "-m", "tensorboard.main"]
    return [*command, f"--logdir={job.model_dir}", "--bind_all", f"--port={port}"]


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that limit a task to this many threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        # With a single one, a TensorFlow server that waits for another server cannot answer.
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
    }


def task_variables(
    job: Job, role: Role, variables: Mapping[str, str], *, grace: float
) -> dict[str, str]:
    """Add what all tasks of a role have in common to the variables of one task.

    Args:
        job: The job.
        role: The role of the task.
        variables: Those of the task itself.
        grace: How many seconds it has to save after SIGTERM.
    """
    cpus = job.needs(role).cpus
    threads = job.threads or (max(1, int(cpus)) if cpus else None)
    limits = thread_variables(threads) if threads else {}
    rules = {**restart_variables(job.restarts), **grace_variables(grace)}
    return {**variables, **DEFAULTS, **limits, **rules, **job.environment}


def evaluator_variables(job: Job) -> dict[str, str]:
    """Return the variables that announce an evaluator to the chief, as TF_CONFIG does not."""
    return shape_variables(job.tasks()) if job.evaluators else {}


def tf_config_settings(job: Job) -> str:
    """Return the settings that follow the task in TF_CONFIG, for a script that writes the rest."""
    model_dir = f', "model_dir": {json.dumps(job.model_dir)}' if job.model_dir else ""
    return model_dir + (', "environment": "cloud"' if job.master else "")


def _tf_config_variables(cluster: Cluster, job: Job) -> Iterator[tuple[Task, str]]:
    environment: Environment = "cloud" if job.master else "local"
    texts = dump_each(cluster, job.tasks(), job.model_dir, environment, master=job.master)
    for task, text in texts:
        if len(text) > _MAX_TF_CONFIG_BYTES:
            raise JobError(
                f"{VARIABLE} of {len(cluster.addresses)} tasks has {len(text):,} bytes, but "
                f"Linux has room for {_MAX_TF_CONFIG_BYTES:,} in a variable: launch a job of this "
                "size on kubernetes, where phalanx.detect() does not need it"
            )
        yield task, text


def assign_gpus(job: Job, hosts: Mapping[Task, str]) -> dict[Task, list[str]]:
    """Assign GPUs by their index on each host; return nothing if no task asks for one."""
    if not any(job.needs(task.role).gpus for task in hosts):
        return {}
    used: Counter[str] = Counter()
    assigned = {}
    for task, host in hosts.items():
        count, first = job.needs(task.role).gpus, used[host]
        assigned[task] = [str(index) for index in range(first, first + count)]
        used[host] += count
    return assigned
