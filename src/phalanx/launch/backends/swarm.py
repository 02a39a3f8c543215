"""The Docker Swarm backend: a stack with a service for each task, on the nodes of a swarm."""

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from phalanx.cluster.job_secret import with_secret
from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError
from phalanx.launch.containers import compose_file
from phalanx.launch.containers.container import CREDENTIALS_PATH
from phalanx.launch.containers.engine import NOTHING, ask, check_ready, run
from phalanx.launch.containers.launcher import ContainerLauncher
from phalanx.launch.containers.security import PIDS, make_swarm_settings
from phalanx.launch.job import Job, Resources
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.patch import COMPOSE_KEYS, merge_patches
from phalanx.launch.options import ENV_FROM_SECRET, Option, OptionValues
from phalanx.launch.processes.background import BackgroundHandle
from phalanx.launch.processes.guardian import run_cleanup
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.task_commands import TENSORBOARD_PORT

_SECRET = "credentials"
_TENSORBOARD_SECRET = "tensorboard-credentials"
_RESTART_DELAY = "1s"
_DEPLOY_SECONDS = 300.0
_REMOVE_SECONDS = 60.0


@dataclass(frozen=True)
class NodeLabel:
    """A label that the nodes of one role, or of every role, must have."""

    role: Role | None
    name: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME=VALUE` or `ROLE:NAME=VALUE`.

        >>> NodeLabel.parse("worker:gpu=yes")
        NodeLabel(role=<Role.WORKER: 'worker'>, name='gpu', value='yes')
        """
        label, equals, value = text.partition("=")
        role, colon, name = label.rpartition(":")
        if not name or not equals or not value:
            raise JobError(
                f"{text!r} is not a node label: write NAME=VALUE, or ROLE:NAME=VALUE for one role"
            )
        return cls(Role.parse_any(role) if colon else None, name, value)


@dataclass(frozen=True)
class SwarmPlan:
    """The stack, as `docker stack deploy` takes it, and the processes that follow its services."""

    name: str
    image: str
    stack: str
    processes: ProcessPlan

    def render(self) -> str:
        return self.stack.rstrip("\n")


@dataclass(frozen=True)
class SwarmLauncher(ContainerLauncher):
    """Deploys a stack through the manager node that `docker` talks to."""

    node_labels: tuple[NodeLabel, ...] = ()
    encrypted: bool = True
    public_tensorboard: bool = False

    launch_help: ClassVar[str] = """
        Start the tasks of a job as the services of a stack, on the nodes of a Docker swarm.

        `docker` must talk to a manager node (DOCKER_HOST, docker context). PROGRAM is a path in
        the image, which every node must have or be able to pull. A background process on this
        machine follows the services, and removes the stack when the job is over.

        Example:
          phalanx launch swarm --image registry/digits:1 --workers 4 --ps 1 --cpus 4 \\
              --node-label worker:gpu=yes --restarts 2 train.py
          phalanx launch swarm --image registry/digits:1 --workers 4 --dry-run train.py > stack.yaml
    """
    launch_options: ClassVar[tuple[Option, ...]] = (
        replace(
            ENV_FROM_SECRET,
            help="Set a variable of every task to a secret of the swarm. Can be repeated.",
        ),
        *ContainerLauncher.launch_options,
        Option(
            "--node-label",
            "Use only nodes with this label, as in worker:gpu=yes. Can be repeated.",
            NodeLabel.parse,
            "[ROLE:]NAME=VALUE",
            multiple=True,
        ),
        Option(
            "--no-encryption",
            "Do not encrypt the traffic between nodes, which needs IPsec in their kernels.",
            is_flag=True,
        ),
        Option(
            "--public-tensorboard",
            "With --tensorboard: publish it on every node, to everybody who can reach one.",
            is_flag=True,
        ),
    )

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        return replace(
            super().from_options(job, values),
            node_labels=values["node_label"],
            encrypted=not values["no_encryption"],
            public_tensorboard=values["public_tensorboard"],
        )

    def plan(self, job: Job) -> SwarmPlan:
        container = self.container
        secret = {"source": _SECRET, "target": CREDENTIALS_PATH}
        secrets = {"secrets": [secret]} if container.credentials else {}
        named = dict.fromkeys(job.secrets.values())
        services = {
            str(task): {
                **service,
                **make_swarm_settings(container.user),
                **_export_secrets(job, service["command"], secrets),
                "deploy": dict(self._plan_deployment(job, task)),
            }
            for task, service in compose_file.make_services(job, container, self.grace)
        }
        if self.tensorboard:
            services["tensorboard"] = self._plan_tensorboard(job)
        file: Manifest = {
            "version": "3.9",
            "services": services,
            "networks": {"default": self._plan_network()},
            **compose_file.make_volumes(container.mounts),
        }
        sources: Manifest = {name: {"external": True} for name in named}
        if container.credentials:
            sources[_SECRET] = {"file": container.credentials}
        if self.tensorboard and container.tensorboard_credentials:
            sources[_TENSORBOARD_SECRET] = {"file": container.tensorboard_credentials}
        if sources:
            file["secrets"] = sources
        processes = self.plan_followers(
            job,
            lambda task: ("service", f"{job.name}_{task}", str(self.directory / f"{task}.seen")),
            cleanup=(("docker", "stack", "rm", job.name),),
        )
        stack = compose_file.render(merge_patches(file, self.patches, COMPOSE_KEYS))
        return SwarmPlan(job.name, container.image, stack, processes)

    def submit(self, plan: SwarmPlan) -> BackgroundHandle:
        _check_manager()
        check_ready(plan.name, plan.image)
        label = f"label=com.docker.stack.namespace={plan.name}"
        if ask("service", "ls", "--quiet", "--filter", label).strip():
            raise JobError(
                f"{NOTHING}: the swarm has a stack {plan.name!r} already; choose another --name, "
                f"or remove it with: docker stack rm {plan.name}"
            )
        _wait_for_network_removal(plan.name)
        for old in self.directory.glob("*.seen"):
            old.unlink()
        deploy = ["docker", "stack", "deploy", "--compose-file", "-", plan.name]
        try:
            variables = with_secret({})
            run(deploy, seconds=_DEPLOY_SECONDS, given=plan.stack.encode(), variables=variables)
            return BackgroundHandle.submit(plan.processes, self.directory)
        except BaseException:
            run_cleanup(plan.processes.cleanup)
            raise

    def _plan_network(self) -> Manifest:
        """Encrypt the traffic between nodes; without it, whoever sees the network is in the job."""
        encryption = {"driver_opts": {"encrypted": "true"}} if self.encrypted else {}
        return {"driver": "overlay", **encryption}

    def _plan_tensorboard(self, job: Job) -> Manifest:
        if not self.public_tensorboard:
            raise JobError(
                "Swarm cannot publish TensorBoard on the loopback interface only: add "
                "--public-tensorboard to publish it on every node, or start it where the model "
                "directory can be read, with phalanx board DIR"
            )
        board = self.container.for_tensorboard(job.model_dir)
        secret = {"source": _TENSORBOARD_SECRET, "target": CREDENTIALS_PATH}
        return {
            **compose_file.make_tensorboard(job, board),
            **make_swarm_settings(board.user),
            **({"secrets": [secret]} if board.credentials else {}),
            "deploy": {"resources": _make_resources(Resources())},
            # Every node of the swarm listens on the port and forwards it.
            "ports": [f"{TENSORBOARD_PORT}:{TENSORBOARD_PORT}"],
        }

    def _plan_deployment(self, job: Job, task: Task) -> Iterator[tuple[str, object]]:
        # The name of a task resolves to its container, not to a virtual address.
        yield "endpoint_mode", "dnsrr"
        if job.restarts:
            attempts = {"max_attempts": job.restarts, "delay": _RESTART_DELAY}
            yield "restart_policy", {"condition": "on-failure", **attempts}
        else:
            yield "restart_policy", {"condition": "none"}
        labels = [each for each in self.node_labels if each.role in (None, task.role)]
        if labels:
            constraints = [f"node.labels.{each.name} == {each.value}" for each in labels]
            yield "placement", {"constraints": constraints}
        yield "resources", _make_resources(job.needs(task.role))


def _export_secrets(job: Job, command: list[str], secrets: Manifest) -> Manifest:
    """Mount the secrets of a service, and export them before its command starts."""
    if not job.secrets:
        return secrets
    exports = [
        f"{name}=$(cat {shlex.quote(f'/run/secrets/{source}')}) && export {name}"
        for name, source in job.secrets.items()
    ]
    script = " && ".join([*exports, 'exec "$@"'])
    mounted = [{"source": each, "target": each} for each in dict.fromkeys(job.secrets.values())]
    return {
        "command": ["sh", "-c", script, "sh", *command],
        "secrets": [*secrets.get("secrets", []), *mounted],
    }


def _make_resources(needs: Resources) -> Manifest:
    """Limit a task to its processors and memory, and reserve them; limit its processes."""
    limits: Manifest = {}
    if needs.cpus:
        limits["cpus"] = f"{needs.cpus:g}"
    if needs.memory:
        limits["memory"] = str(needs.memory)
    reservations = dict(limits)
    if needs.gpus:
        gpus = {"kind": "NVIDIA-GPU", "value": needs.gpus}
        reservations["generic_resources"] = [{"discrete_resource_spec": gpus}]
    limits["pids"] = PIDS
    return {"limits": limits, **({"reservations": reservations} if reservations else {})}


def _wait_for_network_removal(name: str) -> None:
    """Wait for the network of a stack that was just removed, which Swarm removes last."""
    label = f"label=com.docker.stack.namespace={name}"
    deadline = time.monotonic() + _REMOVE_SECONDS
    while ask("network", "ls", "--quiet", "--filter", label).strip():
        if time.monotonic() > deadline:
            raise JobError(
                f"{NOTHING}: the swarm still has the network of a stack {name!r}; "
                f"choose another --name, or remove it with: docker network rm {name}_default"
            )
        time.sleep(1)


def _check_manager() -> None:
    state = ask("info", "--format", "{{.Swarm.LocalNodeState}} {{.Swarm.ControlAvailable}}").split()
    if state[:1] != ["active"]:
        raise JobError(f"{NOTHING}: this engine is in no swarm; create one with: docker swarm init")
    if state[1:] != ["true"]:
        raise JobError(
            f"{NOTHING}: this engine is not a manager of its swarm; run this on a manager, "
            "or name one with DOCKER_HOST"
        )
