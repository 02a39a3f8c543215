"""The Docker Compose backend: a compose file that stays, and its containers on one engine."""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from phalanx.cluster.job_secret import with_secret
from phalanx.cluster.spec import Task
from phalanx.errors import JobError
from phalanx.launch.containers import compose_file
from phalanx.launch.containers.engine import ANSWER_SECONDS, NOTHING, ask, check_ready, run
from phalanx.launch.containers.launcher import ContainerLauncher
from phalanx.launch.containers.security import make_compose_settings
from phalanx.launch.generated_file import check_generated, header, write_generated
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.patch import COMPOSE_KEYS, merge_patches
from phalanx.launch.options import ENV_FROM_FILE, FilePath, Option, OptionValues
from phalanx.launch.processes.background import BackgroundHandle
from phalanx.launch.processes.guardian import run_cleanup
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.secrets import read_secret
from phalanx.launch.task_commands import TENSORBOARD_PORT, assign_gpus

_CREATE_SECONDS = 600.0
_COMMAND = "launch compose"


@dataclass(frozen=True)
class ComposePlan:
    """The compose file, the containers that it creates, and the processes that follow them."""

    name: str
    image: str
    file: str
    containers: tuple[str, ...]
    processes: ProcessPlan
    tensorboard: bool
    secrets: Mapping[str, str]

    def render(self) -> str:
        return self.file.rstrip("\n")


@dataclass(frozen=True)
class ComposeLauncher(ContainerLauncher):
    """Runs each task as a service of a compose file, which stays at `output`."""

    output: Path = Path("compose.yaml")

    launch_help: ClassVar[str] = """
        Write a compose file with a service for each task, and start them on one Docker engine.

        The file stays after the job. PROGRAM is a path in the image. A background process on this
        machine supervises the containers: it ends parameter servers, and removes the containers
        when the job is over.

        Example:
          phalanx launch compose --image digits:1 --workers 2 --ps 1 --cpus 2 train.py
          phalanx launch compose --image digits:1 --workers 2 --dry-run train.py > compose.yaml
    """
    launch_options: ClassVar[tuple[Option, ...]] = (
        ENV_FROM_FILE,
        *ContainerLauncher.launch_options,
        Option(
            "--output",
            "The compose file  [default: NAME.compose.yaml]",
            FilePath(exists=False),
            "FILE",
        ),
    )

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        output = Path(values["output"] or f"{job.name}.compose.yaml")
        return replace(super().from_options(job, values), output=output)

    def plan(self, job: Job) -> ComposePlan:
        container = self.container.with_credentials_mount()
        gpus = assign_gpus(job, dict.fromkeys(job.all_tasks(), "localhost"))
        services = {
            str(task): {
                "container_name": _name(job, task),
                **service,
                **make_compose_settings(container.user),
                # Variables without a value, which compose takes from its own environment.
                "environment": {**service["environment"], **dict.fromkeys(job.secrets)},
                **dict(_limit_resources(job, task)),
                **(_reserve_gpus(gpus[task]) if gpus.get(task) else {}),
            }
            for task, service in compose_file.make_services(job, container, self.grace)
        }
        if self.tensorboard:
            board = self.container.for_tensorboard(job.model_dir).with_credentials_mount()
            services["tensorboard"] = {
                "container_name": f"{job.name}-tensorboard",
                **compose_file.make_tensorboard(job, board),
                **make_compose_settings(container.user),
                "ports": [f"127.0.0.1:{TENSORBOARD_PORT}:{TENSORBOARD_PORT}"],
            }
        content = {"services": services, **compose_file.make_volumes(container.mounts)}
        patched = merge_patches(content, self.patches, COMPOSE_KEYS)
        file = header(_COMMAND) + compose_file.render(patched)
        processes = self.plan_followers(
            job, lambda task: ("container", _name(job, task), f"{self.grace:.0f}")
        )
        names = tuple(_name(job, task) for task in job.all_tasks())
        return ComposePlan(
            job.name, container.image, file, names, processes, self.tensorboard, job.secrets
        )

    def submit(self, plan: ComposePlan) -> BackgroundHandle:
        secrets = {name: read_secret(path) for name, path in plan.secrets.items()}
        check_generated(self.output, _COMMAND)
        compose = _find_compose()
        check_ready(plan.name, plan.image)
        label = f"label=com.docker.compose.project={plan.name}"
        if ask("ps", "--all", "--quiet", "--filter", label).strip():
            raise JobError(
                f"{NOTHING}: compose has a project {plan.name!r} already; choose another --name"
            )
        write_generated(self.output, plan.file, _COMMAND, private=True)
        project = [*compose, "--project-name", plan.name, "--file", str(self.output.absolute())]
        cleanup = ((*project, "down", "--timeout", "0"),)
        try:
            run(
                [*project, "up", "--no-start"],
                seconds=_CREATE_SECONDS,
                variables=with_secret(secrets),
            )
            # The supervisor restarts tasks, so the engine must not.
            ask("update", "--restart=no", *plan.containers)
            if plan.tensorboard:
                run([*project, "start", "tensorboard"], seconds=_CREATE_SECONDS)
            return BackgroundHandle.submit(replace(plan.processes, cleanup=cleanup), self.directory)
        except BaseException:
            run_cleanup(cleanup)
            raise


def _name(job: Job, task: Task) -> str:
    return f"{job.name}-{task}"


def _limit_resources(job: Job, task: Task) -> Iterator[tuple[str, object]]:
    needs = job.needs(task.role)
    if job.restarts:
        yield "restart", f"on-failure:{job.restarts}"
    if needs.cpus:
        yield "cpus", needs.cpus
    if needs.memory:
        yield "mem_limit", needs.memory


def _reserve_gpus(gpus: list[str]) -> Manifest:
    """Reserve GPUs by index, because a count would give every container the first ones."""
    devices = {"driver": "nvidia", "device_ids": gpus, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [devices]}}}}


def _find_compose() -> list[str]:
    """Return the command of Docker's plugin or, without the plugin, the older command."""
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            done = subprocess.run(
                [*command, "version"], capture_output=True, timeout=ANSWER_SECONDS, check=False
            )
        except (FileNotFoundError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return command
    raise JobError(
        f"{NOTHING}: there is neither `docker compose` nor docker-compose; install Docker's "
        "compose plugin, or write the file with --dry-run for a machine that has it"
    )
