"""Tasks on other hosts: their commands there, and the relays that run these from here."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.cluster.job_environment import JOB_ID_VARIABLE
from phalanx.cluster.progress import PRINTED, PROGRESS_VARIABLE
from phalanx.cluster.spec import Task
from phalanx.launch.job import Job
from phalanx.launch.processes import relay
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.plan import MakeTasks, ProcessPlan, TaskPlan
from phalanx.launch.processes.stdin_guard import guard_stdin
from phalanx.launch.task_commands import TaskCommand, task_variables


def make_remote_command(
    job: Job, start: TaskCommand, directory: str, grace: float, gpus: Sequence[str] | None
) -> list[str]:
    """Return the command of a task on its host, which reads variables and signals from its input.

    Args:
        job: The job. Its variables are sent, since others can see the arguments of processes.
        start: The command of the task itself.
        directory: Where it runs.
        grace: How many seconds it has to end.
        gpus: The GPUs that it may use; None for all.
    """
    visible = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    variables = {**start.variables, **visible}
    environment = task_variables(job, start.task.role, variables, grace=grace)
    for name in job.environment:
        del environment[name]
    return [
        *relay.READ_VARIABLES,
        *guard_stdin(directory, grace),
        "env",
        *(f"{name}={text}" for name, text in environment.items()),
        *start.command,
    ]


def add_relays(plan: ProcessPlan) -> ProcessPlan:
    """Run the `ssh` or `srun` of each task behind a relay, which gives the task time to end."""
    tasks = tuple(_add_relay(each, plan.run_id) for each in plan.tasks)
    elastic = plan.elastic
    if elastic is not None:
        elastic = replace(elastic, make_tasks=_Relays(elastic.make_tasks, plan.run_id))
    return replace(plan, tasks=tasks, elastic=elastic)


@dataclass(frozen=True)
class _Relays:
    """Plans the relays of a generation."""

    make_tasks: MakeTasks
    run_id: str

    def __call__(self, members: Sequence[Task]) -> tuple[TaskPlan, ...]:
        return tuple(_add_relay(each, self.run_id) for each in self.make_tasks(members))


def _add_relay(plan: TaskPlan, run_id: str) -> TaskPlan:
    return replace(
        plan,
        argv=(sys.executable, "-I", relay.__file__, *plan.argv),
        environment={
            **plan.environment,
            **relay.mark({PROGRESS_VARIABLE: PRINTED, JOB_ID_VARIABLE: run_id}),
            RUN_ID_VARIABLE: run_id,
            TASK_VARIABLE: str(plan.task),
        },
        is_relay=True,
        kill_signal=relay.KILL_SIGNAL,
    )
