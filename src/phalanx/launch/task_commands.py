"""The command of each task, once every address is known; of tf.data service and TensorBoard too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phalanx.cluster import dispatcher
from phalanx.cluster.lint import find_address_problem
from phalanx.cluster.spec import Role, Task
from phalanx.cluster.tf_config import VARIABLE
from phalanx.errors import JobError
from phalanx.launch.environment import evaluator_variables, tf_config_variables
from phalanx.launch.job import Job
from phalanx.launch.placeholders import fill

TENSORBOARD_PORT = 6006
_DISPATCHER = Task(Role.DISPATCHER)


@dataclass(frozen=True)
class TaskCommand:
    """The command of a task, and the variables that differ from task to task."""

    task: Task
    command: tuple[str, ...]
    variables: Mapping[str, str]


def make_task_commands(
    job: Job, addresses: Mapping[Task, str], python: str
) -> Iterator[TaskCommand]:
    """Yield the program with its TF_CONFIG for each task, then the commands of tf.data service.

    `addresses` are those of `job.listening_tasks()`; an unusable one raises a JobError.
    """
    for task, address in addresses.items():
        problem = find_address_problem(f"the address of {task}", address)
        if problem:
            raise JobError(str(problem))
    cluster = job.cluster(addresses)
    program = job.program.command(python)
    common = evaluator_variables(job)
    if _DISPATCHER in addresses:
        common[dispatcher.VARIABLE] = addresses[_DISPATCHER]
    for task, text in tf_config_variables(cluster, job.tasks(), job.model_dir):
        arguments = (fill(argument, task, cluster) for argument in job.program.arguments)
        yield TaskCommand(task, (*program, *arguments), {VARIABLE: text, **common})
    for task in job.data_tasks():
        yield TaskCommand(task, data_service_command(task, addresses, python), {})


def data_service_command(task: Task, addresses: Mapping[Task, str], python: str) -> tuple[str, ...]:
    """Return the command of a dispatcher or data worker.

    >>> addresses = {Task(Role.DISPATCHER): "a:5050", Task(Role.DATA_WORKER): "b:5050"}
    >>> print(*data_service_command(Task(Role.DATA_WORKER), addresses, "python"))
    python -m phalanx data-service worker a:5050 --host=b --port=5050
    """
    host, _, port = addresses[task].rpartition(":")
    command = (python, "-m", "phalanx", "data-service")
    if task == _DISPATCHER:
        return (*command, "dispatcher", f"--port={port}")
    return (*command, "worker", addresses[_DISPATCHER], f"--host={host}", f"--port={port}")


def tensorboard_command(job: Job, python: str, port: int = TENSORBOARD_PORT) -> list[str]:
    """Return the command that shows the job's model directory, on all addresses of its host.

    >>> from phalanx.launch.job import Program, ProgramKind
    >>> job = Job("digits", Program(ProgramKind.FILE, "train.py"), model_dir="gs://bucket/digits")
    >>> print(*tensorboard_command(job, "python"))
    python -m tensorboard.main --logdir=gs://bucket/digits --bind_all --port=6006
    """
    if not job.model_dir:
        raise JobError("TensorBoard has nothing to show without --model-dir")
    command = [python, "-m", "tensorboard.main"]
    return [*command, f"--logdir={job.model_dir}", "--bind_all", f"--port={port}"]
