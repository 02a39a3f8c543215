"""The Marathon backend: a group with an app for each task."""

import os
import sys
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from phalanx.cluster.job_secret import make_secret
from phalanx.errors import JobError, LaunchError
from phalanx.launch.backends.marathon.api import MarathonClient
from phalanx.launch.backends.marathon.plan import (
    MarathonOptions,
    MarathonPlan,
    add_secret,
    app_id,
    parse_constraint,
    plan_group,
)
from phalanx.launch.containers.container import Container
from phalanx.launch.containers.options import CONTAINER, PATCH, make_container, read_patches
from phalanx.launch.job import Job
from phalanx.launch.job_store import JobStore
from phalanx.launch.options import (
    ENV_FROM_SECRET,
    GRACE,
    TENSORBOARD,
    IntegerRange,
    Option,
    OptionValues,
)
from phalanx.launch.processes.background import BackgroundHandle, BackgroundLauncher
from phalanx.launch.processes.plan import ProcessPlan, plan_followers

# Marathon needs some time to remove an app whose task was killed.
_REMOVAL_SECONDS = 30.0


@dataclass(frozen=True)
class MarathonLauncher(BackgroundLauncher):
    """Creates a group through the REST API.

    Marathon runs and restarts the tasks. A background process on this machine follows them, counts
    the restarts, and removes the group when the job is over.
    """

    url: str
    container: Container
    options: MarathonOptions
    directory: Path
    run_id: str
    agent_port: int = 5051

    launch_help: ClassVar[str] = """
        Start the tasks of a job as the apps of a Marathon group.

        PROGRAM is a path in the image. MARATHON_TOKEN, or MARATHON_USER and MARATHON_PASSWORD, are
        the credentials for Marathon. A background process on this machine follows the job, and
        removes the group when the job is over.

        Example:
          phalanx launch marathon --url http://marathon.mesos:8080 --image digits:1 \\
              --workers 2 --ps 1 --cpus 2 --memory 4G --constraint rack:LIKE:gpu train.py
    """
    launch_options: ClassVar[tuple[Option, ...]] = (
        replace(
            ENV_FROM_SECRET,
            refusal="has no secrets: put the secret on the agents as a file, and use --mount",
        ),
        *CONTAINER,
        Option("--url", "The URL of Marathon  [default: MARATHON_URL]", metavar="URL"),
        Option(
            "--host-name",
            "The host name by which other tasks find a task.",
            metavar="NAME",
            default=MarathonOptions.host_name,
        ),
        Option(
            "--port",
            "The port of the first task. The other tasks use the next ones.",
            IntegerRange(1, 65000),
            default=MarathonOptions.port,
        ),
        Option(
            "--agent-port",
            "The port at which Mesos agents serve the output of tasks.",
            IntegerRange(1, 65535),
            default=5051,
        ),
        Option(
            "--constraint",
            "A placement constraint, as in rack:CLUSTER:a. Can be repeated.",
            parse_constraint,
            "FIELD:OPERATOR[:VALUE]",
            multiple=True,
        ),
        TENSORBOARD,
        PATCH,
        GRACE,
    )

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        url = values["url"] or os.environ.get("MARATHON_URL", "")
        options = MarathonOptions(
            values["host_name"],
            values["port"],
            values["constraint"],
            values["tensorboard"],
            values["grace"],
            read_patches(values),
        )
        return cls(
            url.rstrip("/"),
            make_container(values),
            options,
            JobStore.of_user().directory / job.name,
            uuid.uuid4().hex,
            values["agent_port"],
        )

    def plan(self, job: Job) -> MarathonPlan:
        return plan_group(job, self.container, self.options)

    def submit(self, plan: MarathonPlan) -> BackgroundHandle:
        if not self.url.startswith(("http://", "https://")):
            found = f"{self.url!r} is not a URL" if self.url else "no URL of Marathon is set"
            raise JobError(f"{found}: set MARATHON_URL, or --url http://marathon.mesos:8080")
        marathon = MarathonClient.from_environment(self.url)
        try:
            marathon.create_group(add_secret(plan.group, make_secret()))
        except LaunchError as error:
            raise JobError(f"nothing was submitted: {error}") from None
        try:
            for old in self.directory.glob("*.seen"):
                old.unlink()
            return BackgroundHandle.submit(self._plan_processes(plan), self.directory)
        except BaseException:
            marathon.delete_group(f"/{plan.name}")
            raise

    def _plan_processes(self, plan: MarathonPlan) -> ProcessPlan:
        python = (sys.executable, "-m")
        package = "phalanx.launch.backends.marathon"
        follow = (*python, f"{package}.relay", self.url, str(self.agent_port))
        return plan_followers(
            plan.tasks,
            lambda task: (*follow, app_id(plan.name, task), str(self.directory / f"{task}.seen")),
            self.directory,
            self.run_id,
            restarts=plan.restarts,
            grace=plan.grace + _REMOVAL_SECONDS,
            time_limit=plan.time_limit,
            cleanup=((*python, f"{package}.api", "delete", self.url, f"/{plan.name}"),),
        )
