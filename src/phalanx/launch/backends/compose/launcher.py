"""The compose launcher: writes a compose file, lets compose make the containers, and runs them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.backends.compose.plan import COMMAND, ComposePlan, plan_file
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.engine import ANSWER_SECONDS, NOTHING, ask, check_ready, run
from phalanx.launch.generated_file import check_generated, write_generated
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.processes.background import BackgroundHandle, BackgroundLauncher
from phalanx.launch.processes.guardian import run_cleanup
from phalanx.launch.termination import GracePeriods

_MAKE_SECONDS = 600.0


@dataclass(frozen=True)
class ComposeLauncher(BackgroundLauncher):
    """Starts the tasks of a job as the services of a compose file, which stays in `output`.

    A process of this machine looks after the containers, and goes on after `submit`.
    """

    container: Container
    output: Path
    directory: Path
    run_id: str
    grace: float = GracePeriods.grace
    tensorboard: bool = False
    patches: tuple[Manifest, ...] = ()

    def plan(self, job: Job) -> ComposePlan:
        """The file, and the containers that compose would make of it."""
        return plan_file(
            job,
            self.container,
            self.directory,
            self.run_id,
            self.grace,
            sys.executable,
            self.tensorboard,
            self.patches,
        )

    def submit(self, plan: ComposePlan) -> BackgroundHandle:
        """Write the file and start the job, if that can be done."""
        check_generated(self.output, COMMAND)
        compose = _find_compose()
        check_ready(plan.name, plan.image)
        label = f"label=com.docker.compose.project={plan.name}"
        if ask("ps", "--all", "--quiet", "--filter", label).strip():
            raise JobError(
                f"{NOTHING}: compose has a project {plan.name!r} already; choose another --name"
            )
        write_generated(self.output, plan.file, COMMAND)
        project = [*compose, "--project-name", plan.name, "--file", str(self.output.absolute())]
        cleanup = ((*project, "down", "--timeout", "0"),)
        try:
            run([*project, "up", "--no-start"], seconds=_MAKE_SECONDS)
            # Whoever looks after a task starts it again: not the engine as well.
            ask("update", "--restart=no", *plan.containers)
            if plan.tensorboard:
                run([*project, "start", "tensorboard"], seconds=_MAKE_SECONDS)
            return BackgroundHandle.submit(replace(plan.processes, cleanup=cleanup), self.directory)
        except BaseException:
            run_cleanup(cleanup)
            raise


def _find_compose() -> list[str]:
    """Docker's plugin or, where there is none, the older command."""
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
        f"{NOTHING}: there is neither `docker compose` nor docker-compose: install Docker's "
        "compose plugin, or write the file with --dry-run for a machine that has it"
    )
