"""The Marathon launcher: every task is an app of one group."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import JobError, LaunchError
from phalanx.launch.backends.marathon.api import Marathon
from phalanx.launch.backends.marathon.plan import MarathonOptions, MarathonPlan, app_id, plan_group
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job
from phalanx.launch.processes.background import BackgroundHandle, BackgroundLauncher
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan

# Marathon needs some time to remove an app whose task was killed.
_REMOVAL_SECONDS = 30.0


@dataclass(frozen=True)
class MarathonLauncher(BackgroundLauncher):
    """Makes a group through the REST API.

    Marathon runs the tasks and starts them again; a process of this machine follows them, counts,
    and removes the group when the job is over.
    """

    url: str
    container: Container
    place: MarathonOptions
    directory: Path
    run_id: str
    agent_port: int = 5051

    def plan(self, job: Job) -> MarathonPlan:
        """The group that would be posted."""
        return plan_group(job, self.container, self.place)

    def submit(self, plan: MarathonPlan) -> BackgroundHandle:
        """Post the group, and follow its apps."""
        if not self.url.startswith(("http://", "https://")):
            found = f"{self.url!r} is no URL" if self.url else "no Marathon is named"
            raise JobError(f"{found}: set MARATHON_URL, or --url http://marathon.mesos:8080")
        marathon = Marathon.of_user(self.url)
        try:
            marathon.make_group(plan.group)
        except LaunchError as error:
            raise JobError(f"nothing was submitted: {error}") from None
        try:
            for old in self.directory.glob("*.seen"):
                old.unlink()
            return BackgroundHandle.submit(self._follow(plan), self.directory)
        except BaseException:
            marathon.delete_group(f"/{plan.name}")
            raise

    def _follow(self, plan: MarathonPlan) -> ProcessPlan:
        """A relay for each task, and the end of the group."""
        python = (sys.executable, "-m")
        tasks = tuple(
            TaskPlan(
                task,
                (
                    *(
                        *python,
                        "phalanx.launch.backends.marathon.relay",
                        self.url,
                        str(self.agent_port),
                    ),
                    *(app_id(plan.name, task), str(self.directory / f"{task}.seen")),
                ),
                {RUN_ID_VARIABLE: self.run_id, TASK_VARIABLE: str(task)},
                self.directory / f"{task}.log",
                is_relay=True,
            )
            for task in plan.tasks
        )
        delete = (
            *python,
            "phalanx.launch.backends.marathon.api",
            "delete",
            self.url,
            f"/{plan.name}",
        )
        grace_periods = replace(
            plan.grace_periods, grace=plan.grace_periods.grace + _REMOVAL_SECONDS
        )
        return ProcessPlan(
            tasks, self.run_id, plan.restarts, grace_periods, plan.time_limit, (delete,)
        )
