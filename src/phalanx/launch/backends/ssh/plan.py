"""Plans the `ssh` command of each task, from a job and a list of hosts."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from phalanx.errors import JobError
from phalanx.launch import task_commands
from phalanx.launch.backends.ssh import relay
from phalanx.launch.job import Job
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.processes.stdin_guard import guard_stdin
from phalanx.launch.task_commands import TaskCommand
from phalanx.launch.termination import GracePeriods

# ssh must not prompt, and must fail if a host does not respond or stops responding.
OPTIONS = (
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=4"),
)


@dataclass(frozen=True)
class Host:
    """A destination as `ssh` takes it, and the address at which the other hosts reach it."""

    destination: str
    address: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a value of --host.

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
            # In a URI, a port follows the address.
            address = re.sub(r":\d+$", "", address) if is_uri else address
        if ":" in address and not address.startswith("["):
            address = f"[{address}]"
        if not destination or not address or destination.startswith("-"):
            raise JobError(
                f"{text!r} is not a host: write what ssh takes, as in ann@gpu1 or "
                "ssh://ann@gpu1:2200, and =ADDRESS if the other hosts use another address"
            )
        return cls(destination, address)


@dataclass(frozen=True)
class SshOptions:
    hosts: tuple[Host, ...]
    directory: str
    port: int = 2222
    python: str = "python3"
    ssh_options: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()

    def command(self, host: Host) -> list[str]:
        """Return `ssh HOST` with its options; the caller appends the remote command."""
        extra = [part for option in self.ssh_options for part in ("-o", option)]
        return ["ssh", *OPTIONS, *extra, host.destination]


@dataclass(frozen=True)
class SshPlan:
    """The files that are copied to each host, and the `ssh` process of each task."""

    name: str
    options: SshOptions
    processes: ProcessPlan

    def copies(self) -> list[tuple[Host, str]]:
        if not self.options.copies:
            return []
        unpack = f"mkdir -p {shlex.quote(self.options.directory)} && tar -C " + shlex.join(
            [self.options.directory, "-xf", "-"]
        )
        pack = shlex.join(["tar", "-cf", "-", "--", *self.options.copies])
        return [
            (host, f"{pack} | {shlex.join([*self.options.command(host), unpack])}")
            for host in dict.fromkeys(self.options.hosts)
        ]

    def render(self) -> str:
        copies = [f"# to {host.destination}\n{command}" for host, command in self.copies()]
        return "\n\n".join([*copies, *(_render(each) for each in self.processes.tasks)])


def plan_tasks(
    job: Job, options: SshOptions, directory: Path, run_id: str, grace: float
) -> SshPlan:
    """Assign the tasks to the hosts round-robin. Task k of a host listens on port + k."""
    job.validate()
    if not options.hosts:
        raise JobError("no host is set to start the tasks on: add --host")
    hosts = {task: options.hosts[n % len(options.hosts)] for n, task in enumerate(job.all_tasks())}
    ports_used: Counter[str] = Counter()
    addresses = {}
    for task in job.listening_tasks():
        host = hosts[task].address
        addresses[task] = f"{host}:{options.port + ports_used[host]}"
        ports_used[host] += 1
    gpus = task_commands.assign_gpus(job, {task: host.address for task, host in hosts.items()})
    tasks = tuple(
        TaskPlan(
            start.task,
            (
                *options.command(hosts[start.task]),
                _remote_command(job, options, start, grace, gpus.get(start.task)),
            ),
            # Sent, because all users of a host can see its command lines.
            relay.mark(job.environment),
            directory / f"{start.task}.log",
            secrets=relay.mark(job.secrets),
        )
        for start in task_commands.make_task_commands(job, addresses, options.python)
    )
    processes = ProcessPlan(tasks, run_id, job.restarts, GracePeriods(grace + 5), job.time_limit)
    return SshPlan(job.name, options, processes)


def _render(plan: TaskPlan) -> str:
    """Render the command of a task as it could be typed into a shell."""
    sent = relay.make_lines(plan.environment)
    send = [shlex.join(["printf", r"%s\n", *sent])] if sent else []
    for name, path in relay.unmark(plan.secrets).items():
        # Quotes a secret of a single line.
        change = rf"s/'/'\\''/g; s/.*/export {name}='&'/"
        send.append(shlex.join(["sed", change, path]))
    command = "{ " + "; ".join([*send, "echo", "cat"]) + f"; }} | {shlex.join(plan.argv)}"
    return f"# {plan.task}, output in {plan.log}\n{command}"


def _remote_command(
    job: Job, options: SshOptions, start: TaskCommand, grace: float, gpus: list[str] | None
) -> str:
    """Return one line that any shell of the remote host can run."""
    visible = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    environment = task_commands.task_variables(job, start.task.role, {**start.variables, **visible})
    for name in job.environment:
        del environment[name]
    return "exec " + shlex.join(
        [
            *relay.READ_VARIABLES,
            *guard_stdin(options.directory, grace),
            "env",
            *(f"{name}={text}" for name, text in environment.items()),
            *start.command,
        ]
    )
