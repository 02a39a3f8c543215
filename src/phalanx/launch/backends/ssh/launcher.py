"""The ssh launcher: every task is a process on one of the hosts given."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.backends.ssh import relay
from phalanx.launch.backends.ssh.plan import Host, SshOptions, SshPlan, plan_tasks
from phalanx.launch.job import Job
from phalanx.launch.processes.background import BackgroundHandle, BackgroundLauncher
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE, signal_group
from phalanx.launch.processes.plan import TaskPlan
from phalanx.launch.termination import GracePeriods

_CHECK_SECONDS = 30.0
_COPY_SECONDS = 3600.0
_AT_ONCE = 16


@dataclass(frozen=True)
class SshLauncher(BackgroundLauncher):
    """Starts the tasks of a job on hosts that `ssh` reaches without a password.

    The tasks are looked after from here, by a process of its own that goes on after `submit`.
    """

    place: SshOptions
    directory: Path
    run_id: str
    grace: float = GracePeriods.grace

    def plan(self, job: Job) -> SshPlan:
        """What would be copied, and the ssh of each task."""
        return plan_tasks(job, self.place, self.directory, self.run_id, self.grace)

    def submit(self, plan: SshPlan) -> BackgroundHandle:
        """Start the job, if every host can be reached."""
        _check_hosts(plan)
        for host, command in plan.copies():
            _copy(host, command)
        tasks = tuple(_relayed(each, plan.processes.run_id) for each in plan.processes.tasks)
        return BackgroundHandle.submit(replace(plan.processes, tasks=tasks), self.directory)


def _relayed(plan: TaskPlan, run_id: str) -> TaskPlan:
    """The same task, its ssh behind a relay that ends it gently."""
    argv = (sys.executable, "-I", relay.__file__, *plan.argv)
    marks = {RUN_ID_VARIABLE: run_id, TASK_VARIABLE: str(plan.task)}
    return replace(plan, argv=argv, environment=marks, is_relay=True)


def _check_hosts(plan: SshPlan) -> None:
    """Every host answers and has what is needed, before anything is started on any."""
    used = dict.fromkeys(plan.place.hosts)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        problems = list(pool.map(lambda host: _check_host(plan.place, host), used))
    found = [problem for problem in problems if problem]
    if found:
        raise JobError("nothing was started: " + "; ".join(found))


def _check_host(place: SshOptions, host: Host) -> str | None:
    command = [*place.command(host), "command -v setsid >/dev/null"]
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
        return "there is no ssh on this machine: install OpenSSH's client"
    except subprocess.TimeoutExpired:
        return f"{host.destination} did not answer within {_CHECK_SECONDS:.0f} s"
    if done.returncode == 255:
        return f"{host.destination} cannot be reached: {_last_line(done.stderr)}"
    if done.returncode:
        return f"{host.destination} lacks the command setsid: install util-linux"
    return None


def _copy(host: Host, command: str) -> None:
    """Run the command that copies, in a group of its own, of which nothing stays."""
    failed = f"nothing was started: copying to {host.destination} failed"
    with subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            _, said = process.communicate(timeout=_COPY_SECONDS)
        except BaseException as error:
            signal_group(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise JobError(f"{failed}: it took longer than {_COPY_SECONDS:.0f} s") from None
            raise
    if process.returncode:
        raise JobError(f"{failed}: {_last_line(said)}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason was given"
