"""The Docker backend: a container for each task, on one engine."""

import csv
import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from phalanx.cluster import job_secret
from phalanx.cluster.spec import Task
from phalanx.launch import task_commands
from phalanx.launch.containers.container import PORT, Container, Mount, MountKind
from phalanx.launch.containers.engine import ask, check_ready
from phalanx.launch.containers.launcher import ContainerLauncher
from phalanx.launch.containers.options import CONTAINER, RUN_AS_USER, TENSORBOARD_CREDENTIALS
from phalanx.launch.containers.security import make_docker_options
from phalanx.launch.job import Job
from phalanx.launch.options import ENV_FROM_FILE, GRACE, LOCAL_TENSORBOARD, Option
from phalanx.launch.processes.background import BackgroundHandle
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE, run_cleanup
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.secrets import check_secrets
from phalanx.launch.termination import GracePeriods

_TENSORBOARD = "tensorboard"


@dataclass(frozen=True)
class DockerPlan:
    """The network of a job, the container of each task, and the commands that remove them."""

    name: str
    image: str
    network: tuple[str, ...]
    processes: ProcessPlan
    tensorboard: tuple[str, ...] = ()

    def render(self) -> str:
        cleanup = [shlex.join(command) for command in self.processes.cleanup]
        board = [shlex.join(self.tensorboard)] if self.tensorboard else []
        return "\n\n".join(
            [
                "\n".join([shlex.join(self.network), *board]),
                self.processes.render(),
                "\n".join(["# When the job is over", *cleanup]),
            ]
        )


@dataclass(frozen=True)
class DockerLauncher(ContainerLauncher):
    """Runs each task as a container of the engine that `docker` talks to."""

    launch_help: ClassVar[str] = """
        Start the tasks of a job as containers on one Docker engine.

        The engine is the one that `docker` itself uses (DOCKER_HOST, docker context). PROGRAM is a
        path in the image. A background process on this machine supervises the containers.

        Example:
          phalanx launch docker --image digits:1 --workers 2 --ps 1 --cpus 2 --memory 4G \\
              --mount /home/ann/data:/data:ro train.py --data /data
    """
    launch_options: ClassVar[tuple[Option, ...]] = (
        ENV_FROM_FILE,
        *CONTAINER,
        RUN_AS_USER,
        LOCAL_TENSORBOARD,
        TENSORBOARD_CREDENTIALS,
        GRACE,
    )

    def plan(self, job: Job) -> DockerPlan:
        job.validate()
        self.container.validate()
        # The name of a container is the host of its task's address.
        addresses = {task: f"{_name(job, task)}:{PORT}" for task in job.listening_tasks()}
        network = f"phalanx-{job.name}"
        gpus = task_commands.assign_gpus(job, dict.fromkeys(job.all_tasks(), "localhost"))
        tasks = tuple(
            self._plan_task(job, start, network, gpus.get(start.task))
            for start in task_commands.make_task_commands(job, addresses, self.container.python)
        )
        names = [_name(job, task) for task in job.all_tasks()]
        board = self._plan_tensorboard(job, network) if self.tensorboard else ()
        processes = ProcessPlan(
            tasks,
            self.run_id,
            job.restarts,
            GracePeriods(self.grace),
            job.time_limit,
            cleanup=(
                ("docker", "rm", "--force", *names, *([_name(job, _TENSORBOARD)] if board else [])),
                ("docker", "network", "rm", network),
            ),
        )
        create = ("docker", "network", "create", "--label", f"phalanx.job={job.name}", network)
        return DockerPlan(job.name, self.container.image, create, processes, board)

    def submit(self, plan: DockerPlan) -> BackgroundHandle:
        check_secrets(path for each in plan.processes.tasks for path in each.secrets.values())
        check_ready(plan.name, plan.image)
        ask(*plan.network[1:])
        try:
            if plan.tensorboard:
                ask(*plan.tensorboard[1:])
            return BackgroundHandle.submit(plan.processes, self.directory)
        except BaseException:
            run_cleanup(plan.processes.cleanup)
            raise

    def _plan_task(
        self, job: Job, start: task_commands.TaskCommand, network: str, gpus: list[str] | None
    ) -> TaskPlan:
        task, container = start.task, self.container
        needs = job.needs(task.role)
        # `docker` reads the values from its own environment, so that `ps` does not show them.
        environment = task_commands.task_variables(
            job, task.role, start.variables, grace=self.grace
        )
        environment |= container.credentials_variables()
        labels = {**container.labels, "phalanx.job": job.name, "phalanx.task": str(task)}
        name = _name(job, task)
        options = ["--rm", "--init", f"--name={name}", f"--hostname={name}", f"--network={network}"]
        options += make_docker_options(container.user)
        options += [f"--label={key}={text}" for key, text in labels.items()]
        options += [f"--env={key}" for key in (*environment, *job.secrets, job_secret.VARIABLE)]
        options += _mount_options(container)
        if needs.cpus:
            options.append(f"--cpus={needs.cpus:g}")
        if needs.memory:
            options.append(f"--memory={needs.memory}")
        if gpus:
            # A count would give every container the first GPUs. Docker reads the value as CSV.
            options.append(f'--gpus="device={",".join(gpus)}"')
        return TaskPlan(
            task,
            ("docker", "run", *options, container.image, *start.command),
            {**environment, RUN_ID_VARIABLE: self.run_id, TASK_VARIABLE: str(task)},
            self.directory / f"{task}.log",
            secrets=job.secrets,
        )

    def _plan_tensorboard(self, job: Job, network: str) -> tuple[str, ...]:
        container = self.container.for_tensorboard(job.model_dir)
        options = ["--detach", "--rm", f"--name={_name(job, _TENSORBOARD)}", f"--network={network}"]
        port = task_commands.TENSORBOARD_PORT
        options += [f"--publish=127.0.0.1:{port}:{port}", f"--label=phalanx.job={job.name}"]
        options += make_docker_options(container.user)
        key = container.credentials_variables()
        options += [f"--env={name}={path}" for name, path in key.items()]
        options += _mount_options(container)
        command = task_commands.tensorboard_command(job, container.python)
        return ("docker", "run", *options, container.image, *command)


def _name(job: Job, task: Task | str) -> str:
    return f"{job.name}-{task}"


def _mount_options(container: Container) -> list[str]:
    mounts = container.with_credentials_mount().mounts
    return [f"--mount={_join_fields(_mount_fields(mount))}" for mount in mounts]


def _join_fields(fields: Iterator[str]) -> str:
    """Join the fields of a mount, which Docker reads as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def _mount_fields(mount: Mount) -> Iterator[str]:
    if mount.kind is MountKind.NFS:
        server, _, path = mount.source.partition(":")
        yield "type=volume"
        yield f"target={mount.target}"
        yield "volume-opt=type=nfs"
        yield f"volume-opt=device=:{path}"
        yield f"volume-opt=o=addr={server},nfsvers=4"
    else:
        yield "type=bind" if mount.kind is MountKind.HOST else "type=volume"
        yield f"source={mount.source}"
        yield f"target={mount.target}"
    if mount.read_only:
        yield "readonly"
