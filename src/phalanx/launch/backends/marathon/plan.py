"""From a job to a group of Marathon's apps: a pure function.

Marathon keeps what it runs alive, and starts again whatever ends. So a task that is done stays, and
its health check says so: the check fails once the program has exited 0.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.errors import JobError
from phalanx.launch.containers.container import PORT, Container, MountKind
from phalanx.launch.job import Job
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.patch import MARATHON_KEYS, merge_patches
from phalanx.launch.task_commands import (
    TaskCommand,
    make_task_commands,
    task_variables,
    tensorboard_command,
)
from phalanx.launch.termination import GracePeriods

HOST_NAME = "{task}-{job}.marathon.mesos"
_MIB = 1 << 20
_BOARD = "tensorboard"
# More failures than there can be: a task that is done must not be killed for it.
_NEVER = 1_000_000

_SCRIPT = """\
exec 2>&1
{command} & task=$!
trap 'ending=yes; kill -TERM $task' TERM
wait $task; code=$?
while kill -0 $task 2>/dev/null; do wait $task; code=$?; done
if [ $code != 0 ] || [ -n "$ending" ]; then exit $code; fi
touch "${{MESOS_SANDBOX:-.}}/phalanx-done"
trap 'exit 0' TERM
while true; do sleep 1; done
"""
_IS_NOT_DONE = 'test ! -e "${MESOS_SANDBOX:-.}/phalanx-done"'


@dataclass(frozen=True)
class MarathonOptions:
    """Where in the cluster a job goes. `host_name` is where a task is found, by Mesos-DNS."""

    host_name: str = HOST_NAME
    port: int = PORT
    constraints: tuple[tuple[str, ...], ...] = ()
    tensorboard: bool = False
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    patches: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class MarathonPlan:
    """The group that is posted to /v2/groups."""

    name: str
    group: dict[str, Any]
    tasks: tuple[Task, ...]
    restarts: int
    time_limit: float | None
    grace_periods: GracePeriods

    def render(self) -> str:
        """JSON, as it is posted."""
        return json.dumps(self.group, indent=2)


def app_id(job: str, task: Task | str) -> str:
    """The name of a task's app."""
    return f"/{job}/{task}"


def plan_group(job: Job, container: Container, place: MarathonOptions) -> MarathonPlan:
    """An app for each task, each with a port that no other task of the job has."""
    job.validate()
    container.validate()
    _check(job, container)
    tasks = job.all_tasks()
    ports = {task: place.port + number for number, task in enumerate(tasks)}
    addresses = {task: f"{_host(place, job, task)}:{ports[task]}" for task in job.listening_tasks()}
    apps = [
        _app(job, container, place, start, ports[start.task])
        for start in make_task_commands(job, addresses, container.python)
    ]
    if place.tensorboard:
        apps.append(_tensorboard(job, container, place, place.port + len(tasks)))
    content = {"id": f"/{job.name}", "apps": apps}
    group = merge_patches(content, place.patches, MARATHON_KEYS)
    return MarathonPlan(
        job.name, group, tuple(tasks), job.restarts, job.time_limit, place.grace_periods
    )


def _check(job: Job, container: Container) -> None:
    """Raise a JobError for what Marathon cannot do."""
    missing = [task.role for task in job.all_tasks() if not job.needs(task.role).memory]
    if missing:
        raise JobError(
            f"Marathon gives a task that asks for nothing 128 MB: say what {missing[0]} needs, "
            "as in --memory 4G"
        )
    if container.credentials:
        raise JobError(
            "Marathon keeps no secrets: leave out --credentials, put the key on the agents, and "
            "use --mount and --env GOOGLE_APPLICATION_CREDENTIALS=…"
        )
    others = [each for each in container.mounts if each.kind is not MountKind.HOST]
    if others:
        raise JobError(f"Marathon mounts paths of its agents, and not {others[0].source!r}")


def _host(place: MarathonOptions, job: Job, task: Task) -> str:
    return place.host_name.replace("{task}", str(task)).replace("{job}", job.name)


def _app(
    job: Job, container: Container, place: MarathonOptions, start: TaskCommand, port: int
) -> dict[str, Any]:
    task = start.task
    needs = job.needs(task.role)
    command = shlex.join(start.command)
    return {
        **_common(job, container, place, str(task), _SCRIPT.format(command=command), port),
        "env": task_variables(job, task.role, start.variables),
        "mem": math.ceil((needs.memory or 0) / _MIB),
        **({"cpus": needs.cpus} if needs.cpus else {}),
        **({"gpus": needs.gpus} if needs.gpus else {}),
        "taskKillGracePeriodSeconds": math.ceil(place.grace_periods.grace),
        "healthChecks": [
            {
                "protocol": "COMMAND",
                "command": {"value": _IS_NOT_DONE},
                "delaySeconds": 0,
                "gracePeriodSeconds": 1,
                "intervalSeconds": 2,
                "timeoutSeconds": 10,
                "maxConsecutiveFailures": _NEVER,
            }
        ],
    }


def _tensorboard(
    job: Job, container: Container, place: MarathonOptions, port: int
) -> dict[str, Any]:
    """Lives as long as the group does."""
    command = shlex.join(["exec", *tensorboard_command(job, container.python, port)])
    return {
        **_common(job, container, place, _BOARD, command, port),
        "env": dict(job.environment),
        "mem": 1024,
        "healthChecks": [{"protocol": "MESOS_HTTP", "path": "/", "portIndex": 0}],
    }


def _common(
    job: Job, container: Container, place: MarathonOptions, name: str, command: str, port: int
) -> dict[str, Any]:
    constraints: Sequence[Sequence[str]] = place.constraints
    return {
        "id": app_id(job.name, name),
        "cmd": command,
        "instances": 1,
        "container": {
            "type": "MESOS",
            "docker": {"image": container.image},
            "volumes": [
                {
                    "containerPath": mount.target,
                    "hostPath": mount.source,
                    "mode": "RO" if mount.read_only else "RW",
                }
                for mount in container.mounts
            ],
        },
        "networks": [{"mode": "host"}],
        "portDefinitions": [{"port": port, "protocol": "tcp", "name": "tcp"}],
        # The port in TF_CONFIG is the one it gets, or none.
        "requirePorts": True,
        "labels": {**container.labels, "phalanx.job": job.name},
        **({"constraints": [list(each) for each in constraints]} if constraints else {}),
        # To start again takes no longer each time: restarts are counted, and end.
        "backoffSeconds": 1,
        "backoffFactor": 1,
    }
