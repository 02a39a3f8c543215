"""Plans the `ssh` command of each task, from a job and a list of hosts."""

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from phalanx.cluster.spec import Task
from phalanx.errors import JobError
from phalanx.launch import task_commands
from phalanx.launch.job import Job
from phalanx.launch.processes import relay
from phalanx.launch.processes.generations import ElasticSize
from phalanx.launch.processes.plan import ElasticPlan, ProcessPlan, TaskPlan
from phalanx.launch.processes.remote_tasks import make_remote_command
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
    grace: float = GracePeriods.grace

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
    job: Job, options: SshOptions, directory: Path, run_id: str, rejoin_seconds: float
) -> SshPlan:
    """Assign the tasks to the hosts round-robin. Task k of a host listens on port + k."""
    job.validate(can_scale=True)
    if not options.hosts:
        raise JobError("no host is set to start the tasks on: add --host")
    make_tasks = partial(_plan_members, job, options, directory)
    elastic = None
    if job.is_elastic:
        elastic = ElasticPlan(ElasticSize.of_job(job, rejoin_seconds), make_tasks, directory)
    processes = ProcessPlan(
        make_tasks(job.trainers()),
        run_id,
        job.restarts,
        GracePeriods(options.grace + 5),
        job.time_limit,
        progress_file=str(directory / "progress"),
        elastic=elastic,
    )
    return SshPlan(job.name, options, processes)


def _plan_members(
    job: Job, options: SshOptions, directory: Path, members: Sequence[Task]
) -> tuple[TaskPlan, ...]:
    """Plan all tasks of a job whose trainers run in these slots, the chief's first."""
    hosts = dict(zip(job.largest().all_tasks(), itertools.cycle(options.hosts)))
    ports_used: Counter[str] = Counter()
    addresses = {}
    for slot in job.largest().listening_tasks():
        host = hosts[slot].address
        addresses[slot] = f"{host}:{options.port + ports_used[host]}"
        ports_used[host] += 1
    gpus = task_commands.assign_gpus(
        job.largest(), {slot: host.address for slot, host in hosts.items()}
    )
    job, slots = job.with_members(members)
    ranked = {task: addresses[slots[task]] for task in job.listening_tasks()}
    return tuple(
        TaskPlan(
            slots[start.task],
            (
                *options.command(hosts[slots[start.task]]),
                # One line that any shell of the remote host can run.
                "exec "
                + shlex.join(
                    make_remote_command(
                        *(job, start, options.directory, options.grace),
                        gpus.get(slots[start.task]),
                    )
                ),
            ),
            # Sent, because all users of a host can see its command lines.
            relay.mark(job.environment),
            directory / f"{slots[start.task]}.log",
            secrets=relay.mark(job.secrets),
            rank=start.task,
            progress_file=directory / "progress",
        )
        for start in task_commands.make_task_commands(job, ranked, options.python)
    )


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
