"""Environment variables and GPUs of the tasks, the same for every backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from phalanx.cluster.shape import shape_variables
from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import VARIABLE, dump_each
from phalanx.errors import JobError
from phalanx.launch.job import Job

DEFAULTS: Mapping[str, str] = {
    # oneDNN nearly doubles the speed of training on many CPUs, but is off by default.
    "TF_ENABLE_ONEDNN_OPTS": "1",
    # Warnings and errors only: TensorFlow's info messages would bury the program's own output.
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "PYTHONUNBUFFERED": "1",
}

# Linux limits a variable or an argument to 128 KiB; the rest is left for the text around it.
_MAX_TF_CONFIG_BYTES = (128 << 10) - 4096


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that limit a task to this many threads.

    >>> thread_variables(1)["TF_NUM_INTEROP_THREADS"]
    '2'
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        # With a single one, a TensorFlow server that waits for another server cannot answer.
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
    }


def task_variables(job: Job, role: Role, variables: Mapping[str, str]) -> dict[str, str]:
    """Add the defaults, the thread limits and the user's variables to those of one task."""
    cpus = job.needs(role).cpus
    threads = job.threads or (max(1, int(cpus)) if cpus else None)
    limits = thread_variables(threads) if threads else {}
    return {**variables, **DEFAULTS, **limits, **job.environment}


def evaluator_variables(job: Job) -> dict[str, str]:
    """Return what tells the chief that an evaluator exists, which TF_CONFIG does not say."""
    return shape_variables(job.tasks()) if job.evaluators else {}


def tf_config_variables(
    cluster: Cluster, tasks: Iterable[Task], model_dir: str | None
) -> Iterator[tuple[Task, str]]:
    """Yield the TF_CONFIG of each task; raise a JobError if it is too long for a variable."""
    for task, text in dump_each(cluster, tasks, model_dir):
        if len(text) > _MAX_TF_CONFIG_BYTES:
            raise JobError(
                f"{VARIABLE} of {len(cluster.addresses)} tasks has {len(text) >> 10} KiB, but "
                "Linux takes no more than 128 KiB for a variable: launch a job of this size on "
                "kubernetes, where phalanx.detect() does not need it"
            )
        yield task, text


def assign_gpus(job: Job, hosts: Mapping[Task, str]) -> dict[Task, list[str]]:
    """Assign GPUs by their index on each host; return nothing if no task asks for one.

    >>> from phalanx.launch.job import Program, ProgramKind, Resources
    >>> needs = {Role.WORKER: Resources(gpus=2)}
    >>> job = Job("digits", Program(ProgramKind.FILE, "train.py"), workers=2, resources=needs)
    >>> assigned = assign_gpus(job, {task: "localhost" for task in job.tasks()})
    >>> {str(task): indices for task, indices in assigned.items()}
    {'chief-0': [], 'worker-0': ['0', '1'], 'worker-1': ['2', '3']}
    """
    if not any(job.needs(task.role).gpus for task in hosts):
        return {}
    used: Counter[str] = Counter()
    assigned = {}
    for task, host in hosts.items():
        count, first = job.needs(task.role).gpus, used[host]
        assigned[task] = [str(index) for index in range(first, first + count)]
        used[host] += count
    return assigned
