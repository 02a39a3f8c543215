"""Which GPUs of its host each task gets, where no manager deals them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from phalanx.cluster.spec import Task
from phalanx.launch.job import Job


def deal_gpus(job: Job, hosts: Mapping[Task, str]) -> dict[Task, list[str]]:
    """The numbers of each task's own GPUs; nothing if no task has asked for any.

    >>> from phalanx.cluster.spec import Role
    >>> from phalanx.launch.job import Program, ProgramKind, Resources
    >>> needs = {Role.WORKER: Resources(gpus=2)}
    >>> job = Job("digits", Program(ProgramKind.FILE, "train.py"), workers=2, resources=needs)
    >>> dealt = deal_gpus(job, {task: "here" for task in job.tasks()})
    >>> {str(task): numbers for task, numbers in dealt.items()}
    {'chief-0': [], 'worker-0': ['0', '1'], 'worker-1': ['2', '3']}
    """
    if not any(job.needs(task.role).gpus for task in hosts):
        return {}
    taken: Counter[str] = Counter()
    dealt = {}
    for task, host in hosts.items():
        count, first = job.needs(task.role).gpus, taken[host]
        dealt[task] = [str(number) for number in range(first, first + count)]
        taken[host] += count
    return dealt
