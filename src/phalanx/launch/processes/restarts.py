"""Decides whether a task that has failed is started again: rules, without a process or a clock.

- A task is restarted up to `restarts` times, at once the first time, later after a growing delay.
- Exit code 75, preempted after a save, does not count as a failure of the task, nor does a death by
  SIGTERM, as before the first step, or the loss of another task.
- The budget is full again after an hour of progress.
- A chief on parameter servers stays away for a few seconds, by which its workers learn that they
  have lost it. One that is forked would be back before they look.
- Exit code 2, wrong usage, fails the job: the next start would find the same.
- The same exception at the same step twice is a bug of the program, which no restart cures.
- An evaluator that was killed is restarted even without a budget; its loss never fails the job.
"""

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from phalanx.cluster.spec import Role, Task
from phalanx.launch.termination import describe_exit, describe_failure

PREEMPTED = 75
"""The exit code of a task that has saved after SIGTERM."""
WRONG_USAGE = 2
"""The exit code of a task that cannot do what it was asked to."""
REFILL_SECONDS = 3600.0
CHIEF_ABSENCE_SECONDS = 3.0
"""How long a chief on parameter servers stays away before it is started again."""
_EVALUATOR_RESTARTS = 3
_MAX_PREEMPTIONS = 100
_MAX_DELAY_SECONDS = 60.0

_EXCEPTION = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception)): (.*)")
# A run that diverges begins again with the last checkpoint, which is always finite; but not twice.
_DIVERGED = re.compile(r"phalanx: (.* at step \d+): lower the learning rate")
_FAILED_PEER = re.compile(r"phalanx: [a-z-]+-\d+ failed:")
# Errors of the surroundings: of the network, of files, and of peers that have failed themselves.
_SURROUNDINGS = re.compile(
    r"Unavailable|Aborted|Cancelled|DeadlineExceeded|Peer|Connection|Timeout|BrokenPipe"
    r"|(?:OS|IO|Permission|FileNotFound|ResourceExhausted|Memory|Save|Lease)Error"
)


@dataclass(frozen=True)
class TaskFailure:
    """A task that has exited with an error.

    Attributes:
        task: The task.
        code: Its exit code, or minus the number of a signal.
        error: The exception that its output names; empty if there is none.
        step: The step of the run at that time, if it is known.
        hang: Why the supervisor has killed it; empty if it has not.
        lost_peer: Whether it has failed because another task has.
    """

    task: Task
    code: int
    error: str = ""
    step: int | None = None
    hang: str = ""
    lost_peer: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do about a failure.

    Attributes:
        reason: What to tell the user.
        delay: After how many seconds to start the task again; None for never.
        fails_job: Whether the job has failed.
        is_lost: Whether the task has failed too often, and not by an error of the program: a job
            that can go on without it has not failed.
    """

    reason: str
    delay: float | None = None
    fails_job: bool = False
    is_lost: bool = False


@dataclass
class _History:
    failures: int = 0
    preemptions: int = 0
    total: int = 0
    last: tuple[str, int | None] | None = None
    started_at: float = 0.0
    started_step: int | None = None


@dataclass
class RestartPolicy:
    """The restarts of all tasks of a job.

    Args:
        restarts: How often each task may be restarted.
        is_elastic: Whether tasks that lose another one are restarted even without a budget.
        has_servers: Whether the job has parameter servers.
        knows_steps: Whether the step of the run is known when a task fails. If it is not, the same
            exception twice may be an error of the surroundings.
    """

    restarts: int
    is_elastic: bool = False
    has_servers: bool = False
    knows_steps: bool = True
    lost: set[Task] = field(default_factory=set)
    """The tasks without which the job goes on."""
    _histories: dict[Task, _History] = field(default_factory=dict)

    def start(self, task: Task, step: int | None, now: float) -> None:
        """Note that a task was started, at this step of the run."""
        history = self._histories.setdefault(task, _History())
        history.started_at, history.started_step = now, step

    def decide(self, failure: TaskFailure, now: float) -> Decision:
        """Decide what to do about a task that has failed."""
        decision = self._decide(failure, now)
        # A chief that has saved for SIGTERM has told its workers.
        is_unseen = failure.task.role is Role.CHIEF and failure.code != PREEMPTED
        if self.has_servers and is_unseen and decision.delay is not None:
            return replace(decision, delay=max(decision.delay, CHIEF_ABSENCE_SECONDS))
        return decision

    def _decide(self, failure: TaskFailure, now: float) -> Decision:
        task, history = failure.task, self._histories.setdefault(failure.task, _History())
        advanced = failure.step is None or failure.step > (history.started_step or 0)
        if now - history.started_at >= REFILL_SECONDS and advanced:
            history.failures = history.preemptions = 0
        is_killed = failure.code < 0 or bool(failure.hang)
        what = f"{task} {failure.hang or describe_exit(failure.code)}"
        signature = (failure.error, failure.step)
        repeats = self.knows_steps and bool(failure.error) and signature == history.last
        history.last = signature if failure.error else history.last
        if repeats:
            where = f"at step {failure.step}" if failure.step is not None else "before any step"
            return Decision(
                f"{what}: {failure.error!r} {where}, as the time before, is a bug of the program, "
                "which a restart does not cure",
                fails_job=True,
            )
        history.total += 1
        if failure.code == WRONG_USAGE:
            return Decision(describe_failure(task, failure.code, history.total - 1), fails_job=True)
        is_free = (self.restarts > 0 or self.is_elastic) and history.preemptions < _MAX_PREEMPTIONS
        if failure.code in (PREEMPTED, -signal.SIGTERM) and not failure.hang and is_free:
            history.preemptions += 1
            saved = " and has saved" if failure.code == PREEMPTED else ""
            return Decision(f"{task} was preempted{saved}: it is started again", delay=0.0)
        if failure.lost_peer and is_free:
            history.preemptions += 1
            return Decision(f"{task} has lost another task: it is started again", delay=0.0)
        budget = self.restarts
        if task.role is Role.EVALUATOR and is_killed:
            budget = max(budget, _EVALUATOR_RESTARTS)
        if history.failures < budget:
            history.failures += 1
            count = history.failures
            delay = 0.0 if count == 1 else min(2.0 ** (count - 2), _MAX_DELAY_SECONDS)
            later = f", in {delay:.0f} s" if delay else ""
            return Decision(f"{what}: restart {count} of {budget}{later}", delay=delay)
        if task.role is Role.EVALUATOR and is_killed:
            self.lost.add(task)
            return Decision(f"{what} again and again: the job goes on without it")
        reason = describe_failure(task, failure.code, history.total - 1)
        if failure.hang:
            times = f", restarted {history.total - 1} times" if history.total > 1 else ""
            reason = f"{what}{times}"
        return Decision(reason, fails_job=True, is_lost=not failure.error)


def find_exception(lines: Iterable[str]) -> str:
    """Return the last exception of the program that some lines of output name; empty if none.

    >>> find_exception(["Traceback (most recent call last):", "ValueError: no such layer"])
    'ValueError: no such layer'
    >>> find_exception(["tensorflow.errors.UnavailableError: connection reset"])
    ''
    """
    lines = list(lines)
    if diverged := [match[1] for line in lines if (match := _DIVERGED.match(line))]:
        return diverged[-1]
    found = [match for line in lines if (match := _EXCEPTION.fullmatch(line.strip()))]
    if not found or _SURROUNDINGS.search(found[-1][1]):
        return ""
    return f"{found[-1][1]}: {re.sub(r'0x[0-9a-f]+', '0x', found[-1][2])}"


def names_lost_peer(lines: Iterable[str]) -> bool:
    """Whether the last lines of a task say that it has failed because another one has."""
    return any(line.startswith("phalanx: a peer stopped responding") for line in lines)


def names_failed_peer(lines: Iterable[str]) -> bool:
    """Whether the last lines of a task say which other task has failed.

    >>> names_failed_peer(["phalanx: chief-0 failed: ValueError: no such layer"])
    True
    """
    return any(_FAILED_PEER.match(line) for line in lines)


def describe_stop(seconds: float) -> str:
    """Describe a task that the supervisor has killed because it was stopped."""
    return f"was stopped ({signal.SIGSTOP.name}) for {seconds:.0f} s, and was killed"
