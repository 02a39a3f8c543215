"""A submitted Slurm job. The state of its tasks comes from files beside their logs."""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

from phalanx.cluster.spec import Role, Task
from phalanx.errors import LaunchError
from phalanx.launch.base import Facts, JobResult, TaskState, TaskStatus, poll
from phalanx.launch.log_files import read_log, read_tail
from phalanx.launch.termination import decode_exit_code, describe_failure

_REPLY_SECONDS = 60.0
_POLL_SECONDS = 1.0
_END_STATES = frozenset(
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
# How long to wait for Slurm's first decision about a job.
_DECISION_SECONDS = 3.0
# Slurm accepts such jobs, and they stay pending forever.
_NEVER = {
    "BadConstraints": "no node has the requested resources",
    "InvalidAccount": "the account does not exist",
    "InvalidQOS": "the QOS does not exist",
    "PartitionConfig": "the partition has too few nodes or processors",
    "PartitionNodeLimit": "the partition does not allow so many nodes",
    "PartitionTimeLimit": "the partition does not allow so much time",
}
# These limits apply to one job, so the job stays pending even if all others end.
_PER_JOB_LIMIT = re.compile(r"(Assoc|QOS)Max\w+PerJob(Limit)?")


def explain_never(reason: str) -> str:
    """Explain the reason of a pending job that can never start; empty if it can.

    >>> explain_never("QOSMaxCpuPerJobLimit")
    'it exceeds what one job of this QOS may use'
    >>> explain_never("Resources")
    ''
    """
    limit = _PER_JOB_LIMIT.fullmatch(reason)
    if limit:
        owner = "QOS" if limit[1] == "QOS" else "account"
        return f"it exceeds what one job of this {owner} may use"
    return _NEVER.get(reason, "")


class SlurmHandle:
    """A job of Slurm's. Each task writes its state to a file in the log directory."""

    def __init__(self, job_id: str, log_dir: Path, counts: Mapping[Role, int]) -> None:
        self.job_id = job_id
        self._log_dir = log_dir
        self._counts = counts

    @classmethod
    def attach(cls, facts: Facts) -> Self:
        counts = {Role(role): count for role, count in facts["counts"].items()}
        return cls(facts["number"], Path(facts["log_dir"]), counts)

    def facts(self) -> Facts:
        counts = {str(role): count for role, count in self._counts.items()}
        return {"number": self.job_id, "log_dir": str(self._log_dir), "counts": counts}

    def membership_directory(self) -> Path:
        return self._log_dir

    def check_that_it_can_start(self) -> None:
        """Raise a LaunchError if Slurm decides that the job can never start."""
        deadline = time.monotonic() + _DECISION_SECONDS
        while time.monotonic() < deadline:
            state, reason = self._state()
            explanation = explain_never(reason) if state == "PENDING" else ""
            if explanation:
                raise LaunchError(f"Slurm would never start it ({reason}: {explanation})")
            if state != "PENDING" or reason not in ("None", ""):
                return
            time.sleep(0.2)

    def status(self) -> list[TaskStatus]:
        state, reason = self._state()
        pending = f"Slurm reports {state}: {reason}" if state == "PENDING" else ""
        over = state in _END_STATES or not state
        tasks = [Task(role, n) for role, count in self._counts.items() for n in range(count)]
        return [self._task_status(task, pending, over) for task in tasks]

    def _task_status(self, task: Task, pending: str, over: bool) -> TaskStatus:
        try:
            word, *numbers = (self._log_dir / f"{task}.state").read_text().split()
            state = TaskState(word)
        except (FileNotFoundError, ValueError):
            state = TaskState.ENDED if over else TaskState.WAITING
            return TaskStatus(task, state, last_line=pending)
        if over and state is TaskState.RUNNING:
            state = TaskState.ENDED
        restarts, *code = map(int, numbers)
        last = "".join(read_tail(self._log_dir / f"{task}.log", 1))
        return TaskStatus(task, state, restarts, decode_exit_code(code[0]) if code else None, last)

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        over = (lambda: self.wait(0) is not None) if follow else None
        yield from read_log(self._log_dir / f"{task}.log", over and _throttle(over))

    def cancel(self) -> None:
        """Ask the batch script to end the job: trainers first, so that they can save."""
        state, _ = self._state()
        if state == "RUNNING":
            # Keeps the script from requeueing the job.
            with contextlib.suppress(OSError):
                (self._log_dir / "cancelled").touch()
            run_slurm("scancel", "--batch", "--signal=TERM", self.job_id)
        elif state and state not in _END_STATES:
            run_slurm("scancel", self.job_id)

    def wait(self, timeout: float | None = None) -> JobResult | None:
        return poll(self._result, timeout, _POLL_SECONDS)

    def _result(self) -> JobResult | None:
        state, reason = self._state()
        if state and state not in _END_STATES:
            return None
        try:
            code, _, message = (self._log_dir / "result").read_text().strip().partition(" ")
        except FileNotFoundError:
            if not state:
                return JobResult(1, f"Slurm no longer knows job {self.job_id}")
            because = f" ({reason})" if reason not in ("None", "") else ""
            return JobResult(1, f"Slurm reports {state}{because}")
        if code == "0":
            return JobResult(0, "succeeded")
        for status in sorted(self.status(), key=lambda each: each.task):
            if status.state is TaskState.FAILED:
                lines = read_tail(self._log_dir / f"{status.task}.log", 20)
                reason = describe_failure(status.task, status.exit_code, status.restarts)
                return JobResult(1, reason, status.task, tuple(lines))
        return JobResult(int(code), message)

    def _state(self) -> tuple[str, str]:
        """Return the state of the job and its reason; empty if Slurm has purged the job."""
        try:
            output = run_slurm("scontrol", "--oneliner", "show", "job", self.job_id)
        except LaunchError as error:
            if "Invalid job id" in str(error):
                return "", ""
            raise
        # The first component of a heterogeneous job runs the script.
        fields = dict(word.partition("=")[::2] for word in output.splitlines()[0].split())
        return fields.get("JobState", ""), fields.get("Reason", "")


def _throttle(question: Callable[[], bool]) -> Callable[[], bool]:
    """Limit how often a question is put to Slurm; in between the answer is False."""
    asked = [0.0]

    def ask() -> bool:
        if time.monotonic() - asked[0] < 2 * _POLL_SECONDS:
            return False
        asked[0] = time.monotonic()
        return question()

    return ask


def run_slurm(*command: str, text: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_REPLY_SECONDS, check=False
        )
    except FileNotFoundError:
        raise LaunchError(
            f"there is no command {command[0]}: run this where the Slurm commands are installed"
        ) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]} did not respond within {_REPLY_SECONDS:.0f} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason was given"]
        reason = re.sub(rf"^{command[0]}: ((error|fatal): )?", "", lines[-1])
        raise LaunchError(f"{command[0]}: {reason}")
    return done.stdout
