"""Variables that every task gets, whatever starts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from phalanx.cluster.job_environment import shape_variables
from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import VARIABLE, dump_each
from phalanx.errors import JobError
from phalanx.launch.job import Job

DEFAULTS: Mapping[str, str] = {
    # oneDNN nearly doubles the speed of training on many CPUs, but is off by default.
    "TF_ENABLE_ONEDNN_OPTS": "1",
    # Warnings and errors: what TensorFlow logs below them drowns the program's own output.
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "PYTHONUNBUFFERED": "1",
}


def thread_variables(threads: int) -> dict[str, str]:
    """What keeps a task to this many threads.

    >>> thread_variables(1)["TF_NUM_INTEROP_THREADS"]
    '2'
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        # With a single one, a TensorFlow server that waits for another never gets to answer.
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
    }


def task_variables(job: Job, role: Role, own: Mapping[str, str]) -> dict[str, str]:
    """What is a task's own, the same for all, and above both what the user has set."""
    cpus = job.needs(role).cpus
    threads = job.threads or (max(1, int(cpus)) if cpus else None)
    limits = thread_variables(threads) if threads else {}
    return {**own, **DEFAULTS, **limits, **job.environment}


def evaluator_variables(job: Job) -> dict[str, str]:
    """What tells the chief that it need not evaluate: TF_CONFIG says nothing of evaluators."""
    return shape_variables(job.tasks()) if job.evaluators else {}


# Linux takes no longer variable or argument; the rest is for what stands around it.
LONGEST_BYTES = (128 << 10) - 4096


def tf_config_variables(
    cluster: Cluster, tasks: Iterable[Task], model_dir: str | None
) -> Iterator[tuple[Task, str]]:
    """TF_CONFIG for each task; a JobError if it is longer than a process can be given."""
    for task, text in dump_each(cluster, tasks, model_dir):
        if len(text) > LONGEST_BYTES:
            size = f"{VARIABLE} of {len(cluster.addresses)} tasks has {len(text) >> 10} KiB"
            raise JobError(
                f"{size}, but Linux takes no more than 128 KiB: launch so many with kubernetes, "
                "where phalanx.detect() needs none"
            )
        yield task, text
