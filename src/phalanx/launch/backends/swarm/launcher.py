"""The Swarm launcher: every task is a service of one stack."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.backends.swarm.plan import NodeLabel, SwarmPlan, plan_stack
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.engine import NOTHING, ask, check_ready, run
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.processes.background import BackgroundHandle, BackgroundLauncher
from phalanx.launch.processes.guardian import run_cleanup
from phalanx.launch.termination import GracePeriods

_DEPLOY_SECONDS = 300.0
_REMOVE_SECONDS = 60.0


@dataclass(frozen=True)
class SwarmLauncher(BackgroundLauncher):
    """Deploys a stack through the manager that `docker` talks to.

    A process of this machine follows the services, and removes the stack when the job is over.
    """

    container: Container
    directory: Path
    run_id: str
    node_labels: tuple[NodeLabel, ...] = ()
    grace: float = GracePeriods.grace
    tensorboard: bool = False
    patches: tuple[Manifest, ...] = ()

    def plan(self, job: Job) -> SwarmPlan:
        """The stack that would be deployed."""
        return plan_stack(
            job,
            self.container,
            self.node_labels,
            self.directory,
            self.run_id,
            self.grace,
            sys.executable,
            self.tensorboard,
            self.patches,
        )

    def submit(self, plan: SwarmPlan) -> BackgroundHandle:
        """Deploy the stack, if there are a manager and the image, and the name is free."""
        _check_manager()
        check_ready(plan.name, plan.image)
        label = f"label=com.docker.stack.namespace={plan.name}"
        if ask("service", "ls", "--quiet", "--filter", label).strip():
            raise JobError(
                f"{NOTHING}: the swarm has a stack {plan.name!r} already; choose another --name, "
                f"or remove it with: docker stack rm {plan.name}"
            )
        _wait_for_network(plan.name)
        for old in self.directory.glob("*.seen"):
            old.unlink()
        deploy = ["docker", "stack", "deploy", "--compose-file", "-", plan.name]
        try:
            run(deploy, seconds=_DEPLOY_SECONDS, given=plan.stack.encode())
            return BackgroundHandle.submit(plan.processes, self.directory)
        except BaseException:
            run_cleanup(plan.processes.cleanup)
            raise


def _wait_for_network(name: str) -> None:
    """Of a stack that was removed a moment ago, the network goes last."""
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
    """Raise a JobError unless the engine can be told what the swarm is to do."""
    said = ask("info", "--format", "{{.Swarm.LocalNodeState}} {{.Swarm.ControlAvailable}}").split()
    if said[:1] != ["active"]:
        raise JobError(f"{NOTHING}: this engine is in no swarm; make one with: docker swarm init")
    if said[1:] != ["true"]:
        raise JobError(
            f"{NOTHING}: this engine is not a manager of its swarm; run this on a manager, "
            "or name one with DOCKER_HOST"
        )
