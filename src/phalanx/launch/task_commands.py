"""What each task is started with, once every address is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phalanx.cluster.lint import find_address_problem
from phalanx.cluster.spec import Task
from phalanx.cluster.tf_config import VARIABLE
from phalanx.errors import JobError
from phalanx.launch.data_workers import service_command, service_variables
from phalanx.launch.environment import evaluator_variables, tf_config_variables
from phalanx.launch.job import Job
from phalanx.launch.placeholders import fill


@dataclass(frozen=True)
class Start:
    """A task's command, and the variables that are its own."""

    task: Task
    command: tuple[str, ...]
    variables: Mapping[str, str]


def make_starts(job: Job, addresses: Mapping[Task, str], python: str) -> Iterator[Start]:
    """The program with TF_CONFIG for those that train; beside them, the servers of data.

    `addresses` are those of `job.listening()`; one that cannot be used is a JobError.
    """
    for task, address in addresses.items():
        problem = find_address_problem(f"the address of {task}", address)
        if problem:
            raise JobError(str(problem))
    cluster = job.cluster(addresses)
    start = job.program.start(python)
    shape = evaluator_variables(job)
    for task, text in tf_config_variables(cluster, job.tasks(), job.model_dir):
        filled = (fill(argument, task, cluster) for argument in job.program.arguments)
        variables = {VARIABLE: text, **shape, **service_variables(addresses)}
        yield Start(task, (*start, *filled), variables)
    for task in job.data_tasks():
        yield Start(task, tuple(service_command(task, addresses, python)), {})
