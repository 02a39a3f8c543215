"""The Docker launcher: every task is a container on one engine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import JobError, PhalanxError
from phalanx.launch.container import Container
from phalanx.launch.docker.plan import DockerPlan, plan_containers
from phalanx.launch.job import Job
from phalanx.launch.processes.background import BackgroundHandle
from phalanx.launch.processes.guardian import tidy_up
from phalanx.launch.processes.plan import GRACE_SECONDS

_ANSWER_SECONDS = 60.0
_PULL_SECONDS = 3600.0


@dataclass(frozen=True)
class DockerLauncher:
    """Starts the tasks of a job as containers of the engine that `docker` talks to.

    A process of this machine looks after the containers, and goes on after `submit`.
    """

    container: Container
    directory: Path
    run_id: str
    grace: float = GRACE_SECONDS

    def plan(self, job: Job) -> DockerPlan:
        """The network and the `docker run` of each task."""
        return plan_containers(job, self.container, self.directory, self.run_id, self.grace)

    def submit(self, plan: DockerPlan) -> BackgroundHandle:
        """Start the job, if there are an engine and the image, and the name is free."""
        _docker("version", "--format", "{{.Server.Version}}")
        label = f"label=phalanx.job={plan.name}"
        if _docker("ps", "--all", "--quiet", "--filter", label).strip():
            raise JobError(
                f"nothing was started: the engine has containers of a job {plan.name!r}; "
                "choose another --name, or remove them"
            )
        try:
            _docker("image", "inspect", plan.image)
        except JobError:
            _docker("pull", plan.image, seconds=_PULL_SECONDS)
        _docker(*plan.network[1:])
        try:
            return BackgroundHandle.submit(plan.processes, self.directory)
        except PhalanxError:
            tidy_up(plan.processes.cleanup)
            raise

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> BackgroundHandle:
        """The job in its directory."""
        return BackgroundHandle(Path(facts["directory"]))


def _docker(*arguments: str, seconds: float = _ANSWER_SECONDS) -> str:
    """Ask the engine; what it says went wrong becomes an error."""
    try:
        done = subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise JobError("nothing was started: there is no command docker; install it") from None
    except subprocess.TimeoutExpired:
        raise JobError(f"nothing was started: docker gave no answer in {seconds:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["docker gave no reason"]
        reason = lines[-1].removeprefix("Error response from daemon: ")
        raise JobError(f"nothing was started: {reason}")
    return done.stdout
