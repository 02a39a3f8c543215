"""The Slurm launcher: one job of Slurm's for all tasks, a step for each role."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError, LaunchError
from phalanx.launch.backends.slurm.plan import SlurmOptions, SlurmPlan, plan_script
from phalanx.launch.base import JobResult, TaskState, TaskStatus, poll
from phalanx.launch.job import Job
from phalanx.launch.log_files import read_log, read_tail
from phalanx.launch.termination import decode_exit_code, describe_failure

_ANSWER_SECONDS = 60.0
_POLL_SECONDS = 1.0
_OVER = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)
# Slurm takes such jobs, and lets them wait for ever.
_LOOK_SECONDS = 3.0
_NEVER = {
    "BadConstraints": "no node has what is asked for",
    "InvalidAccount": "there is no such account",
    "InvalidQOS": "there is no such QOS",
    "PartitionConfig": "the partition does not have as many nodes or processors",
    "PartitionNodeLimit": "the partition does not allow as many nodes",
    "PartitionTimeLimit": "the partition does not allow as much time",
}
# Such a limit is one job's, so that no other job that ends makes room for it.
_ONE_JOBS_LIMIT = re.compile(r"(Assoc|QOS)Max\w+PerJob(Limit)?")


def why_never(reason: str) -> str:
    """What Slurm's reason for a job that waits means, if it waits in vain.

    >>> why_never("QOSMaxCpuPerJobLimit")
    'it is more than one job of this QOS may have'
    >>> why_never("Resources")
    ''
    """
    limit = _ONE_JOBS_LIMIT.fullmatch(reason)
    if limit:
        whose = "QOS" if limit[1] == "QOS" else "account"
        return f"it is more than one job of this {whose} may have"
    return _NEVER.get(reason, "")


@dataclass(frozen=True)
class SlurmLauncher:
    """Submits a job with `sbatch`. Its directory must be on a file system that all nodes share."""

    place: SlurmOptions

    def plan(self, job: Job) -> SlurmPlan:
        """The script that would be submitted."""
        return plan_script(job, self.place)

    def submit(self, plan: SlurmPlan) -> SlurmHandle:
        """Hand the script to Slurm."""
        log_dir = Path(plan.log_dir)
        new = [path for path in (log_dir, *log_dir.parents) if not path.exists()]
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JobError(f"no output can be written to {log_dir}: {error.strerror}") from None
        _remove_old(log_dir, plan.counts)
        number = ""
        try:
            number = _ask("sbatch", "--parsable", text=plan.script).strip().partition(";")[0]
            handle = SlurmHandle(number, log_dir, dict(plan.counts))
            handle.check_that_it_can_start()
        except BaseException as error:
            with contextlib.suppress(LaunchError, OSError):
                if number:
                    _ask("scancel", number)
                for path in new:
                    path.rmdir()
            if isinstance(error, LaunchError):
                raise JobError(f"nothing was submitted: {error}") from None
            raise
        return handle

    @classmethod
    def attach(cls, facts: Mapping[str, Any]) -> SlurmHandle:
        """The job with this number."""
        counts = {Role(role): count for role, count in facts["counts"].items()}
        return SlurmHandle(facts["number"], Path(facts["log_dir"]), counts)


class SlurmHandle:
    """A job that Slurm knows by a number. What its tasks do is in files beside their output."""

    def __init__(self, number: str, log_dir: Path, counts: Mapping[Role, int]) -> None:
        self.number = number
        self._log_dir = log_dir
        self._counts = counts

    def facts(self) -> dict[str, Any]:
        """Number, directory, shape."""
        counts = {str(role): count for role, count in self._counts.items()}
        return {"number": self.number, "log_dir": str(self._log_dir), "counts": counts}

    def check_that_it_can_start(self) -> None:
        """Raise a LaunchError if Slurm says, once it has looked, that it never will start it."""
        deadline = time.monotonic() + _LOOK_SECONDS
        while time.monotonic() < deadline:
            state, reason = self._state()
            why = why_never(reason) if state == "PENDING" else ""
            if why:
                raise LaunchError(f"Slurm would never start it ({reason}: {why})")
            if state != "PENDING" or reason not in ("None", ""):
                return
            time.sleep(0.2)

    def status(self) -> list[TaskStatus]:
        """Every task as it said itself; before any has started, why Slurm lets the job wait."""
        state, reason = self._state()
        waiting = f"Slurm says {state}: {reason}" if state == "PENDING" else ""
        over = state in _OVER or not state
        tasks = [Task(role, n) for role, count in self._counts.items() for n in range(count)]
        return [self._task_status(task, waiting, over) for task in tasks]

    def _task_status(self, task: Task, waiting: str, over: bool) -> TaskStatus:
        try:
            word, *numbers = (self._log_dir / f"{task}.state").read_text().split()
            state = TaskState(word)
        except (FileNotFoundError, ValueError):
            return TaskStatus(
                task, TaskState.ENDED if over else TaskState.WAITING, 0, None, waiting
            )
        if over and state is TaskState.RUNNING:
            state = TaskState.ENDED
        restarts, *code = map(int, numbers)
        last = "".join(read_tail(self._log_dir / f"{task}.log", 1))
        return TaskStatus(task, state, restarts, decode_exit_code(code[0]) if code else None, last)

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        """The task's output so far; with `follow`, until the job is over."""
        over = (lambda: self.wait(0) is not None) if follow else None
        yield from read_log(self._log_dir / f"{task}.log", over and _seldom(over))

    def cancel(self) -> None:
        """Ask the script to end the job: everybody may save, and ps come last."""
        state, _ = self._state()
        if state == "RUNNING":
            # So that the script does not ask for another start.
            with contextlib.suppress(OSError):
                (self._log_dir / "cancelled").touch()
            _ask("scancel", "--batch", "--signal=TERM", self.number)
        elif state and state not in _OVER:
            _ask("scancel", self.number)

    def wait(self, timeout: float | None = None) -> JobResult | None:
        """How the job ended; None if it goes on after `timeout` seconds."""
        return poll(self._result, timeout, _POLL_SECONDS)

    def _result(self) -> JobResult | None:
        state, reason = self._state()
        if state and state not in _OVER:
            return None
        try:
            code, _, said = (self._log_dir / "result").read_text().strip().partition(" ")
        except FileNotFoundError:
            if not state:
                return JobResult(1, f"Slurm no longer knows its job {self.number}")
            because = f" ({reason})" if reason not in ("None", "") else ""
            return JobResult(1, f"Slurm says {state}{because}")
        if code == "0":
            return JobResult(0, "succeeded")
        for status in sorted(self.status(), key=lambda each: each.task):
            if status.state is TaskState.FAILED:
                lines = read_tail(self._log_dir / f"{status.task}.log", 20)
                reason = describe_failure(status.task, status.exit_code, status.restarts)
                return JobResult(1, reason, status.task, tuple(lines))
        return JobResult(int(code), said)

    def _state(self) -> tuple[str, str]:
        """Slurm's word for the job's state, and its reason; nothing if the job is long gone."""
        try:
            said = _ask("scontrol", "--oneliner", "show", "job", self.number)
        except LaunchError as error:
            if "Invalid job id" in str(error):
                return "", ""
            raise
        # Of a heterogeneous job the first component runs the script.
        fields = dict(word.partition("=")[::2] for word in said.splitlines()[0].split())
        return fields.get("JobState", ""), fields.get("Reason", "")


def _remove_old(log_dir: Path, counts: Iterable[tuple[Role, int]]) -> None:
    """Remove what an earlier job has left under the names of this one's files, and nothing else."""
    tasks = [Task(role, index) for role, count in counts for index in range(count)]
    own = [f"{task}.{kind}" for task in tasks for kind in ("log", "state")]
    for name in (*own, "batch.log", "result", "cancelled"):
        try:
            (log_dir / name).unlink(missing_ok=True)
        except OSError as error:
            raise JobError(
                f"{log_dir / name} is in the way of the job's output and cannot be removed: "
                f"{error.strerror}; choose another --log-dir"
            ) from None


def _seldom(question: Callable[[], bool]) -> Callable[[], bool]:
    """The same question, but put to Slurm no more than once in a while."""
    asked = [0.0]

    def ask() -> bool:
        if time.monotonic() - asked[0] < 2 * _POLL_SECONDS:
            return False
        asked[0] = time.monotonic()
        return question()

    return ask


def _ask(*command: str, text: str = "") -> str:
    """Run one of Slurm's commands; what it says went wrong becomes an error."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise LaunchError(
            f"there is no command {command[0]}: run this where Slurm's commands are installed"
        ) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]} did not answer within {_ANSWER_SECONDS:.0f} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason was given"]
        said = re.sub(rf"^{command[0]}: ((error|fatal): )?", "", lines[-1])
        raise LaunchError(f"{command[0]}: {said}")
    return done.stdout
