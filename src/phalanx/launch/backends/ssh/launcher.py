"""The ssh backend: a process for each task, on hosts that `ssh` reaches."""

import signal
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from phalanx.errors import JobError
from phalanx.launch.backends.ssh.plan import Host, SshOptions, SshPlan, plan_tasks
from phalanx.launch.job import Job
from phalanx.launch.job_store import JobStore
from phalanx.launch.options import (
    CPUS,
    DATA_WORKERS,
    ELASTIC,
    ENV_FROM_FILE,
    GPUS,
    GRACE,
    NO_MEMORY,
    NO_TENSORBOARD,
    IntegerRange,
    Option,
    OptionValues,
)
from phalanx.launch.processes.background import BackgroundHandle, BackgroundLauncher
from phalanx.launch.processes.generations import REJOIN_SECONDS
from phalanx.launch.processes.guardian import signal_group
from phalanx.launch.processes.remote_tasks import add_relays
from phalanx.launch.secrets import check_secrets

_CHECK_SECONDS = 30.0
_COPY_SECONDS = 3600.0
_CONCURRENT_CHECKS = 16


@dataclass(frozen=True)
class SshLauncher(BackgroundLauncher):
    """Starts the tasks of a job on hosts that `ssh` reaches without a password.

    A background process on this machine supervises the tasks.
    """

    options: SshOptions
    directory: Path
    run_id: str
    rejoin_seconds: float = REJOIN_SECONDS

    launch_help: ClassVar[str] = """
        Start the tasks of a job on several hosts, with nothing but ssh.

        The tasks are assigned to the hosts round-robin. ssh must not ask for a password. A
        background process on this machine supervises the tasks: the machine must stay on until the
        job is over.

        Example:
          phalanx launch ssh --host gpu1 --host gpu2 --workers 2 --ps 1 \\
              --copy train.py --directory /scratch/digits train.py --rate 0.1
    """
    launch_options: ClassVar[tuple[Option, ...]] = (
        *ELASTIC,
        ENV_FROM_FILE,
        DATA_WORKERS,
        CPUS,
        GPUS,
        NO_MEMORY,
        NO_TENSORBOARD,
        Option(
            "--host",
            "A host as ssh takes it, and its address for the other hosts. Can be repeated.",
            metavar="HOST[=ADDRESS]",
            multiple=True,
        ),
        Option(
            "--directory",
            "Where the program runs on every host  [default: the path of this directory]",
            metavar="DIR",
        ),
        Option(
            "--copy",
            "Copy this file or directory to --directory first. Nothing else is copied. "
            "Can be repeated.",
            metavar="PATH",
            multiple=True,
        ),
        Option("--python", "The Python of the hosts.", default=SshOptions.python),
        Option(
            "--port",
            "The port of the first task on a host. The other tasks use the next ones.",
            IntegerRange(1, 65000),
            default=SshOptions.port,
        ),
        Option(
            "--ssh-option",
            "An option of ssh -o. Can be repeated.",
            metavar="NAME=VALUE",
            multiple=True,
        ),
        GRACE,
    )

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        options = SshOptions(
            hosts=tuple(Host.parse(each) for each in values["host"]),
            directory=values["directory"] or str(Path.cwd()),
            port=values["port"],
            python=values["python"],
            ssh_options=values["ssh_option"],
            copies=values["copy"],
            grace=values["grace"],
        )
        directory = JobStore.of_user().directory / job.name
        return cls(options, directory, uuid.uuid4().hex, values["rejoin"])

    def plan(self, job: Job) -> SshPlan:
        return plan_tasks(job, self.options, self.directory, self.run_id, self.rejoin_seconds)

    def submit(self, plan: SshPlan) -> BackgroundHandle:
        check_secrets(path for each in plan.processes.tasks for path in each.secrets.values())
        _check_hosts(plan.options)
        for host, command in plan.copies():
            _copy(host, command)
        return BackgroundHandle.submit(add_relays(plan.processes), self.directory)


def _check_hosts(options: SshOptions) -> None:
    """Raise a JobError unless every host responds and has the commands that tasks need."""
    hosts = dict.fromkeys(options.hosts)
    with ThreadPoolExecutor(_CONCURRENT_CHECKS) as pool:
        found = list(filter(None, pool.map(lambda host: _check_host(options, host), hosts)))
    if found:
        raise JobError("nothing was started: " + "; ".join(found))


def _check_host(options: SshOptions, host: Host) -> str | None:
    command = [*options.command(host), "command -v setsid >/dev/null"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return "this machine has no command ssh: install the client of OpenSSH"
    except subprocess.TimeoutExpired:
        return f"{host.destination} did not respond within {_CHECK_SECONDS:.0f} s"
    if done.returncode == 255:
        return f"{host.destination} cannot be reached: {_last_line(done.stderr)}"
    if done.returncode:
        return f"{host.destination} has no command setsid: install util-linux"
    return None


def _copy(host: Host, command: str) -> None:
    """Run a copy command in a process group of its own, which is killed if the copy fails."""
    failed = f"nothing was started: copying to {host.destination} failed"
    with subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            _, stderr = process.communicate(timeout=_COPY_SECONDS)
        except BaseException as error:
            signal_group(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise JobError(f"{failed}: it took longer than {_COPY_SECONDS:.0f} s") from None
            raise
    if process.returncode:
        raise JobError(f"{failed}: {_last_line(stderr)}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason was given"
