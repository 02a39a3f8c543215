"""The Slurm backend: one batch job for all tasks, with a step for each role."""

import contextlib
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError, LaunchError
from phalanx.launch.backends.slurm.handle import SlurmHandle, run_slurm
from phalanx.launch.backends.slurm.plan import SlurmOptions, SlurmPlan, plan_script
from phalanx.launch.base import Facts
from phalanx.launch.job import Job, ProgramKind
from phalanx.launch.options import (
    ELASTIC,
    GRACE_PERIODS,
    PROCESSES,
    IntegerRange,
    Option,
    OptionValues,
    make_grace_periods,
)
from phalanx.launch.private_files import make_private_directory
from phalanx.launch.secrets import check_secrets
from phalanx.launch.values import parse_duration


@dataclass(frozen=True)
class SlurmLauncher:
    """Submits a job with `sbatch`. Its directory must be on a file system that all nodes share."""

    options: SlurmOptions

    launch_help: ClassVar[str] = """
        Submit a batch job with a step for each role.

        This directory must be on a file system that the nodes share. Roles that need different
        resources make a heterogeneous job. In an allocation that you already have, run the script:
        phalanx launch slurm --dry-run … | bash

        Example:
          phalanx launch slurm --workers 4 --ps 2 --cpus 8 --memory 16G --gpus chief=1 \\
              --gpus worker=1 --partition gpu --time-limit 12h --requeue train.py --rate 0.1
    """
    launch_options: ClassVar[tuple[Option, ...]] = (
        *ELASTIC,
        *PROCESSES,
        Option("--partition", "The partition, as for sbatch."),
        Option("--account", "The account, as for sbatch."),
        Option("--nodes", "The number of nodes, as for sbatch.", IntegerRange(1), "N"),
        Option(
            "--requeue", "Requeue the job after preemption and at its time limit.", is_flag=True
        ),
        Option(
            "--notice",
            "Send SIGTERM this long before the time limit.",
            partial(parse_duration, most=65535),
            "TIME",
            default=f"{SlurmOptions.notice}s",
        ),
        *GRACE_PERIODS,
        Option(
            "--sbatch-option",
            "Any other option of sbatch, as in --sbatch-option=--qos=high. Can be repeated.",
            metavar="OPTION",
            multiple=True,
        ),
        Option(
            "--log-dir",
            "The directory of the tasks' logs  [default: phalanx-logs/NAME]",
            metavar="DIR",
        ),
        Option("--python", "The Python of the nodes  [default: this one]", metavar="PATH"),
    )

    @classmethod
    def from_options(cls, job: Job, values: OptionValues) -> Self:
        target = job.program.target
        if job.program.kind is ProgramKind.FILE and not Path(target).exists():
            raise JobError(
                f"there is no file {target}: to run a command that is not a Python file, "
                "put -- before it"
            )
        options = SlurmOptions(
            directory=str(Path.cwd()),
            log_dir=str(Path(values["log_dir"] or f"phalanx-logs/{job.name}").absolute()),
            python=values["python"] or sys.executable,
            partition=values["partition"],
            account=values["account"],
            nodes=values["nodes"],
            requeue=values["requeue"],
            notice=math.ceil(values["notice"]),
            grace_periods=make_grace_periods(values),
            sbatch_options=values["sbatch_option"],
            rejoin_seconds=values["rejoin"],
        )
        return cls(options)

    def plan(self, job: Job) -> SlurmPlan:
        return plan_script(job, self.options)

    def submit(self, plan: SlurmPlan) -> SlurmHandle:
        check_secrets(plan.secrets)
        log_dir = Path(plan.log_dir)
        created = [path for path in (log_dir, *log_dir.parents) if not path.exists()]
        try:
            make_private_directory(log_dir)
        except OSError as error:
            raise JobError(f"no output can be written to {log_dir}: {error.strerror}") from None
        _remove_old_files(log_dir, plan.counts)
        job_id = ""
        try:
            output = run_slurm("sbatch", "--parsable", text=plan.script)
            job_id = output.strip().partition(";")[0]
            handle = SlurmHandle(job_id, log_dir, dict(plan.counts))
            handle.check_that_it_can_start()
        except BaseException as error:
            with contextlib.suppress(LaunchError, OSError):
                if job_id:
                    run_slurm("scancel", job_id)
                for path in created:
                    path.rmdir()
            if isinstance(error, LaunchError):
                raise JobError(f"nothing was submitted: {error}") from None
            raise
        return handle

    @classmethod
    def attach(cls, facts: Facts) -> SlurmHandle:
        return SlurmHandle.attach(facts)


def _remove_old_files(log_dir: Path, counts: Iterable[tuple[Role, int]]) -> None:
    """Remove the files of an earlier job that this job will write, and no others."""
    tasks = [Task(role, index) for role, count in counts for index in range(count)]
    names = [f"{task}.{kind}" for task in tasks for kind in ("log", "state")]
    for name in (*names, "batch.log", "result", "cancelled", "progress"):
        try:
            (log_dir / name).unlink(missing_ok=True)
        except OSError as error:
            raise JobError(
                f"{log_dir / name} is in the way of the job's output and cannot be removed: "
                f"{error.strerror}; choose another --log-dir"
            ) from None
