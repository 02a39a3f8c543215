"""Plans the Marathon group of a job.

Marathon restarts every app that exits. So a task that has succeeded does not exit, and a health
check that fails from then on reports its success.
"""

import json
import math
import shlex
from dataclasses import dataclass

from phalanx.cluster import job_secret
from phalanx.cluster.spec import Task
from phalanx.cluster.tf_config import VARIABLE
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
_OPERATORS = ("UNIQUE", "CLUSTER", "GROUP_BY", "LIKE", "UNLIKE", "MAX_PER", "IS")
# More failures than there can be, so that Marathon does not kill a task that has succeeded.
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
    """How Marathon runs a job. `host_name` is the DNS name of a task, as Mesos-DNS makes it."""

    host_name: str = HOST_NAME
    port: int = PORT
    constraints: tuple[tuple[str, ...], ...] = ()
    tensorboard: bool = False
    grace: float = GracePeriods.grace
    patches: tuple[Manifest, ...] = ()


@dataclass(frozen=True)
class MarathonPlan:
    """The group that is posted to /v2/groups."""

    name: str
    group: Manifest
    tasks: tuple[Task, ...]
    restarts: int
    time_limit: float | None
    grace: float

    def render(self) -> str:
        return json.dumps(self.group, indent=2)


def parse_constraint(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(":", 2))
    if len(parts) < 2 or not parts[0] or parts[1] not in _OPERATORS:
        raise ValueError(f"{text!r} is not a constraint: write rack:LIKE:gpu or rack:CLUSTER:a")
    return parts


def app_id(job: str, task: Task | str) -> str:
    return f"/{job}/{task}"


def plan_group(job: Job, container: Container, options: MarathonOptions) -> MarathonPlan:
    """Return a group with an app for each task, on a port that no other task of the job uses."""
    job.validate()
    container.validate()
    _check_support(job, container)
    tasks = job.all_tasks()
    ports = {task: options.port + number for number, task in enumerate(tasks)}
    addresses = {
        task: f"{_host(options, job, task)}:{ports[task]}" for task in job.listening_tasks()
    }
    apps = [
        _make_app(job, container, options, start, ports[start.task])
        for start in make_task_commands(job, addresses, container.python)
    ]
    if options.tensorboard:
        apps.append(_make_tensorboard(job, container, options, options.port + len(tasks)))
    content = {"id": f"/{job.name}", "apps": apps}
    group = merge_patches(content, options.patches, MARATHON_KEYS)
    return MarathonPlan(job.name, group, tuple(tasks), job.restarts, job.time_limit, options.grace)


def add_secret(group: Manifest, secret: str) -> Manifest:
    """Return the group with the secret of the job, which plans do not have, in every task."""
    apps = [
        {**app, "env": {**app["env"], job_secret.VARIABLE: secret}}
        if VARIABLE in app.get("env", {})
        else app
        for app in group["apps"]
    ]
    return {**group, "apps": apps}


def _check_support(job: Job, container: Container) -> None:
    missing = [task.role for task in job.all_tasks() if not job.needs(task.role).memory]
    if missing:
        raise JobError(
            f"Marathon limits a task to 128 MB by default: set the memory of {missing[0]}, "
            "as in --memory 4G"
        )
    if container.credentials:
        raise JobError(
            "Marathon has no secrets: leave out --credentials, put the key on the agents, and "
            "use --mount and --env GOOGLE_APPLICATION_CREDENTIALS=…"
        )
    others = [each for each in container.mounts if each.kind is not MountKind.HOST]
    if others:
        raise JobError(f"Marathon mounts only paths of its agents, not {others[0].source!r}")


def _host(options: MarathonOptions, job: Job, task: Task) -> str:
    return options.host_name.replace("{task}", str(task)).replace("{job}", job.name)


def _make_app(
    job: Job, container: Container, options: MarathonOptions, start: TaskCommand, port: int
) -> Manifest:
    task = start.task
    needs = job.needs(task.role)
    command = shlex.join(start.command)
    return {
        **_make_common(job, container, options, str(task), _SCRIPT.format(command=command), port),
        "env": task_variables(job, task.role, start.variables, grace=options.grace),
        "mem": math.ceil((needs.memory or 0) / _MIB),
        **({"cpus": needs.cpus} if needs.cpus else {}),
        **({"gpus": needs.gpus} if needs.gpus else {}),
        "taskKillGracePeriodSeconds": math.ceil(options.grace),
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


def _make_tensorboard(
    job: Job, container: Container, options: MarathonOptions, port: int
) -> Manifest:
    command = shlex.join(["exec", *tensorboard_command(job, container.python, port)])
    return {
        **_make_common(job, container, options, "tensorboard", command, port),
        "mem": 1024,
        "healthChecks": [{"protocol": "MESOS_HTTP", "path": "/", "portIndex": 0}],
    }


def _make_common(
    job: Job, container: Container, options: MarathonOptions, name: str, command: str, port: int
) -> Manifest:
    constraints = [list(each) for each in options.constraints]
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
        # TF_CONFIG has the port, so the task must get exactly this one.
        "requirePorts": True,
        "labels": {**container.labels, "phalanx.job": job.name},
        **({"constraints": constraints} if constraints else {}),
        # A constant delay, because the number of restarts is limited anyway.
        "backoffSeconds": 1,
        "backoffFactor": 1,
    }
