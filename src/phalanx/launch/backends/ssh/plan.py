"""From a job and a list of hosts to the `ssh` of each task: a pure function."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.job import Job
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.processes.stdin_guard import guard_stdin
from phalanx.launch.task_commands import (
    TaskCommand,
    assign_gpus,
    make_task_commands,
    task_variables,
)
from phalanx.launch.termination import GracePeriods

# Nothing is asked for at a prompt, and a host that does not answer, or goes away, is noticed.
OPTIONS = (
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=4"),
)


@dataclass(frozen=True)
class Host:
    """What `ssh` is given, and the address at which the other hosts reach it."""

    destination: str
    address: str

    @classmethod
    def parse(cls, text: str) -> Host:
        """A host as it is written on the command line.

        >>> Host.parse("ann@gpu1")
        Host(destination='ann@gpu1', address='gpu1')
        >>> Host.parse("ssh://ann@gpu1:2200=10.0.0.1").address
        '10.0.0.1'
        >>> Host.parse("ann@fd00::7").address
        '[fd00::7]'
        """
        destination, equals, address = text.partition("=")
        if not equals:
            is_uri = destination.startswith("ssh://")
            address = destination.removeprefix("ssh://").rpartition("@")[2].rstrip("/")
            # A port comes after an IPv6 address in brackets, and after any other.
            address = re.sub(r":\d+$", "", address) if is_uri else address
        if ":" in address and not address.startswith("["):
            address = f"[{address}]"
        if not destination or not address or destination.startswith("-"):
            raise JobError(
                f"{text!r} is not a host: write what ssh is to be given, as in ann@gpu1 or "
                "ssh://ann@gpu1:2200, and =ADDRESS if the hosts know it by another one"
            )
        return cls(destination, address)


@dataclass(frozen=True)
class SshOptions:
    """How and where tasks are started on every host."""

    hosts: tuple[Host, ...]
    directory: str
    port: int = 2222
    python: str = "python3"
    options: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()

    def command(self, host: Host) -> list[str]:
        """`ssh` to a host; what to run there comes after it."""
        extra = [part for option in self.options for part in ("-o", option)]
        return ["ssh", *OPTIONS, *extra, host.destination]


@dataclass(frozen=True)
class SshPlan:
    """What is copied to which hosts, and the processes that are started here for the tasks."""

    name: str
    place: SshOptions
    processes: ProcessPlan

    def copies(self) -> list[tuple[Host, str]]:
        """For every host the command that unpacks there what is packed here."""
        if not self.place.copies:
            return []
        unpack = f"mkdir -p {shlex.quote(self.place.directory)} && tar -C " + shlex.join(
            [self.place.directory, "-xf", "-"]
        )
        pack = shlex.join(["tar", "-cf", "-", *self.place.copies])
        return [
            (host, f"{pack} | {shlex.join([*self.place.command(host), unpack])}")
            for host in dict.fromkeys(self.place.hosts)
        ]

    def render(self) -> str:
        """The copies, then a command for each task, as they could be typed into a shell."""
        copies = [f"# to {host.destination}\n{command}" for host, command in self.copies()]
        return "\n\n".join([*copies, self.processes.render()])


def plan_tasks(job: Job, place: SshOptions, directory: Path, run_id: str, grace: float) -> SshPlan:
    """Deal the tasks out to the hosts in turn; task k of a host listens on its port + k."""
    job.validate()
    if not place.hosts:
        raise JobError("there is no host to start anything on: name them with --host")
    hosts = {task: place.hosts[n % len(place.hosts)] for n, task in enumerate(job.all_tasks())}
    taken: Counter[str] = Counter()
    addresses = {}
    for task in job.listening_tasks():
        host = hosts[task].address
        addresses[task] = f"{host}:{place.port + taken[host]}"
        taken[host] += 1
    gpus = assign_gpus(job, {task: host.address for task, host in hosts.items()})
    tasks = tuple(
        TaskPlan(
            start.task,
            (
                *place.command(hosts[start.task]),
                _remote_command(job, place, start, grace, gpus.get(start.task)),
            ),
            {},
            directory / f"{start.task}.log",
        )
        for start in make_task_commands(job, addresses, place.python)
    )
    processes = ProcessPlan(tasks, run_id, job.restarts, GracePeriods(grace + 5), job.time_limit)
    return SshPlan(job.name, place, processes)


def _remote_command(
    job: Job, place: SshOptions, start: TaskCommand, grace: float, gpus: list[str] | None
) -> str:
    """One line for the shell of the other host, whichever shell that is."""
    seen = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    environment = task_variables(job, start.task.role, {**start.variables, **seen})
    return "exec " + shlex.join(
        [
            *guard_stdin(place.directory, grace),
            "env",
            *(f"{name}={text}" for name, text in environment.items()),
            *start.command,
        ]
    )
