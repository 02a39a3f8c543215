"""The local launcher: every task is a process on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.backends.local.plan import plan_tasks
from phalanx.launch.job import Job
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.processes.supervisor import Observer, SupervisedHandle, start
from phalanx.launch.termination import GracePeriods


@dataclass(frozen=True)
class LocalLauncher:
    """Starts the tasks of a job here.

    >>> from phalanx.launch.job import Job, Program, ProgramKind
    >>> job = Job("hello", Program(ProgramKind.COMMAND, "echo", ("{role}",)))
    >>> machine = Machine(processors=2, gpus=(), environ={}, python="python3")
    >>> launcher = LocalLauncher(machine, ports=(2222,), log_dir=Path("logs"), run_id="r1")
    >>> launcher.plan(job).tasks[0].argv
    ('echo', 'chief')
    """

    machine: Machine
    ports: Sequence[int]
    log_dir: Path
    run_id: str
    share: bool = True
    grace_periods: GracePeriods = field(default_factory=GracePeriods)

    def plan(self, job: Job) -> ProcessPlan:
        """What each task is started with, on the ports and with the machine given."""
        tasks = plan_tasks(job, self.machine, self.ports, self.log_dir, self.share, self.run_id)
        return ProcessPlan(tasks, self.run_id, job.restarts, self.grace_periods, job.time_limit)

    def submit(self, plan: ProcessPlan, observer: Observer | None = None) -> SupervisedHandle:
        """Start the tasks; `observer` is told of their output and of what becomes of them."""
        return start(plan, self.machine.environ, observer)
