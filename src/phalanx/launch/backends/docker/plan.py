"""From a job to a `docker run` for each task: a pure function."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.spec import Task
from phalanx.launch.containers.container import (
    CREDENTIALS_PATH,
    CREDENTIALS_VARIABLE,
    PORT,
    Container,
    Mount,
    MountKind,
)
from phalanx.launch.job import Job
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.task_commands import (
    TENSORBOARD_PORT,
    TaskCommand,
    assign_gpus,
    make_task_commands,
    task_variables,
    tensorboard_command,
)
from phalanx.launch.termination import GracePeriods


@dataclass(frozen=True)
class DockerPlan:
    """A network of the job's own, a container for each task, and how all of it goes away."""

    name: str
    image: str
    network: tuple[str, ...]
    processes: ProcessPlan
    tensorboard: tuple[str, ...] = ()

    def render(self) -> str:
        """The commands, as they could be typed into a shell."""
        cleanup = [shlex.join(command) for command in self.processes.cleanup]
        board = [shlex.join(self.tensorboard)] if self.tensorboard else []
        return "\n\n".join(
            [
                "\n".join([shlex.join(self.network), *board]),
                self.processes.render(),
                "\n".join(["# When the job is over", *cleanup]),
            ]
        )


def plan_containers(
    job: Job,
    container: Container,
    directory: Path,
    run_id: str,
    grace: float,
    tensorboard: bool,
) -> DockerPlan:
    """Every task in a container whose name is its address."""
    job.validate()
    container.validate()
    addresses = {task: f"{_name(job, task)}:{PORT}" for task in job.listening_tasks()}
    network = f"phalanx-{job.name}"
    gpus = assign_gpus(job, dict.fromkeys(job.all_tasks(), "here"))
    plans = tuple(
        _plan_container(job, container, start, network, directory, run_id, gpus.get(start.task))
        for start in make_task_commands(job, addresses, container.python)
    )
    names = [_name(job, task) for task in job.all_tasks()]
    board = _tensorboard(job, container, network) if tensorboard else ()
    processes = ProcessPlan(
        plans,
        run_id,
        job.restarts,
        GracePeriods(grace),
        job.time_limit,
        cleanup=(
            ("docker", "rm", "--force", *names, *([_board_name(job)] if board else [])),
            ("docker", "network", "rm", network),
        ),
    )
    create = ("docker", "network", "create", "--label", f"phalanx.job={job.name}", network)
    return DockerPlan(job.name, container.image, create, processes, board)


def _name(job: Job, task: Task) -> str:
    return f"{job.name}-{task}"


def _board_name(job: Job) -> str:
    return f"{job.name}-tensorboard"


def _tensorboard(job: Job, container: Container, network: str) -> tuple[str, ...]:
    """Shown on this machine alone, for as long as the job runs."""
    name = _board_name(job)
    options = ["--detach", "--rm", f"--name={name}", f"--network={network}"]
    options += [f"--publish=127.0.0.1:{TENSORBOARD_PORT}:{TENSORBOARD_PORT}"]
    options += [f"--label=phalanx.job={job.name}"]
    if container.credentials:
        options.append(f"--env={CREDENTIALS_VARIABLE}={CREDENTIALS_PATH}")
    options += [f"--mount={_mount(mount)}" for mount in container.with_credentials_mount().mounts]
    return ("docker", "run", *options, container.image, *tensorboard_command(job, container.python))


def _plan_container(
    job: Job,
    container: Container,
    start: TaskCommand,
    network: str,
    directory: Path,
    run_id: str,
    gpus: list[str] | None,
) -> TaskPlan:
    task = start.task
    needs = job.needs(task.role)
    # Values reach docker through its environment, so that no list of processes shows them.
    environment = task_variables(job, task.role, start.variables)
    if container.credentials:
        environment[CREDENTIALS_VARIABLE] = CREDENTIALS_PATH
    labels = {**container.labels, "phalanx.job": job.name, "phalanx.task": str(task)}
    name = _name(job, task)
    options = ["--rm", "--init", f"--name={name}", f"--hostname={name}", f"--network={network}"]
    options += [f"--label={key}={text}" for key, text in labels.items()]
    options += [f"--env={key}" for key in environment]
    options += [f"--mount={_mount(mount)}" for mount in container.with_credentials_mount().mounts]
    if needs.cpus:
        options.append(f"--cpus={needs.cpus:g}")
    if needs.memory:
        options.append(f"--memory={needs.memory}")
    if gpus:
        # By number: a mere count is the first ones for every container. Docker reads it as CSV.
        options.append(f'--gpus="device={",".join(gpus)}"')
    argv = ("docker", "run", *options, container.image, *start.command)
    return TaskPlan(
        task,
        argv,
        {**environment, RUN_ID_VARIABLE: run_id, TASK_VARIABLE: str(task)},
        directory / f"{task}.log",
    )


def _mount(mount: Mount) -> str:
    return ",".join(_mount_fields(mount))


def _mount_fields(mount: Mount) -> Iterator[str]:
    if mount.kind is MountKind.NFS:
        server, _, path = mount.source.partition(":")
        yield "type=volume"
        yield f"target={mount.target}"
        yield "volume-opt=type=nfs"
        yield f"volume-opt=device=:{path}"
        yield f'"volume-opt=o=addr={server},nfsvers=4"'
    else:
        yield "type=bind" if mount.kind is MountKind.HOST else "type=volume"
        yield f"source={mount.source}"
        yield f"target={mount.target}"
    if mount.read_only:
        yield "readonly"
