"""Which trainers of an elastic job train together: rules, without a process or a clock.

A slot is a place where a trainer can run. A generation is the slots whose processes train together:
they start together, know only each other, and end together. The first of them is the chief.

- When a trainer fails, the others cannot go on: they are stopped, and a new generation is formed.
- It is as large as before if the slot may be used again soon, and smaller otherwise. It never has
  fewer trainers than the minimum, and only numbers that can share the global batch evenly.
- A slot is lost when its processes were killed more often than its budget allows. It is avoided
  for a while, longer each time, and then tried again: the trainers save, and a larger generation
  is formed. The same happens when another number of trainers is requested.
- The job fails when too few slots are left, by an error of the program, and after several
  generations in succession without a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self, TypeAlias

from phalanx.cluster.spec import Task
from phalanx.launch.job import Job
from phalanx.launch.processes.restarts import PREEMPTED, RestartPolicy, TaskFailure

STOP_SECONDS = 5.0
"""How long the others have to end by themselves when a trainer has failed."""
GATHER_SECONDS = 10.0
"""How long a generation waits for slots that may be used again soon, before it is smaller."""
STEADY_SECONDS = 30.0
"""How long a generation trains at least before a larger one takes its place."""
MAX_IDLE_GENERATIONS = 10
"""How many generations in succession may fail without a step."""
REJOIN_SECONDS = 300.0
"""How long a lost slot is avoided at first."""
_MAX_REJOIN_SECONDS = 3600.0


@dataclass(frozen=True)
class ElasticSize:
    """How many trainers an elastic job may have, with the chief.

    Attributes:
        slots: Where trainers can run, the preferred ones first.
        wanted: The number of trainers to begin with.
        minimum: The smallest number of trainers.
        rejoin_seconds: How long a lost slot is avoided at first.
    """

    slots: tuple[Task, ...]
    wanted: int
    minimum: int
    rejoin_seconds: float = REJOIN_SECONDS

    @classmethod
    def of_job(cls, job: Job, rejoin_seconds: float = REJOIN_SECONDS) -> Self:
        chiefs = int(job.chief)
        minimum = job.workers if job.min_workers is None else job.min_workers
        slots = tuple(job.largest().trainers())
        return cls(slots, chiefs + job.workers, chiefs + minimum, rejoin_seconds)


@dataclass(frozen=True)
class Start:
    """Start a process in each of these slots, as one generation; the first is the chief."""

    number: int
    members: tuple[Task, ...]


@dataclass(frozen=True)
class Save:
    """Ask all trainers to save and to end."""

    reason: str


@dataclass(frozen=True)
class Kill:
    """Kill all processes of the generation that still run."""


@dataclass(frozen=True)
class Fail:
    """The job has failed."""

    reason: str
    failure: TaskFailure | None = None


Action: TypeAlias = Start | Save | Kill | Fail


class _Phase(Enum):
    FORMING = "forming"
    TRAINING = "training"
    SAVING = "saving"
    STOPPING = "stopping"


@dataclass
class _Slot:
    free_at: float = 0.0
    is_lost: bool = False
    losses: int = 0


@dataclass
class Generations:
    """The generations of one job.

    Args:
        size: How many trainers there may be.
        policy: Decides about each failure.
        grace: How many seconds trainers have to save.
        servers: The parameter servers, which belong to every generation.
    """

    size: ElasticSize
    policy: RestartPolicy
    grace: float
    servers: tuple[Task, ...] = ()
    number: int = 1
    """The number of the current generation."""
    members: tuple[Task, ...] = ()
    """The slots of the current generation, in the order of their ranks."""
    shares: int = 0
    """The number of trainers must divide it; 0 if there may be any number."""
    notes: list[str] = field(default_factory=list)
    """What to tell the user; whoever reads them clears the list."""
    _phase: _Phase = _Phase.TRAINING
    _running: set[Task] = field(default_factory=set)
    _slots: dict[Task, _Slot] = field(default_factory=dict)
    _since: float = 0.0
    _kill_at: float | None = None
    _was_killed: bool = False
    _idle: int = 0
    _first_step: int | None = None
    _failed: Fail | None = None
    _has_lost: bool = False
    _is_requested: bool = False

    def __post_init__(self) -> None:
        self._slots = {slot: _Slot() for slot in self.size.slots}
        self.members = self.size.slots[: self.size.wanted]
        self._running = {*self.members, *self.servers}

    @property
    def is_ending(self) -> bool:
        """Whether the processes of this generation are ending, or have ended."""
        return self._phase is not _Phase.TRAINING

    def request(self, wanted: int) -> None:
        """Change the number of trainers on purpose; lost slots get another chance."""
        self.size = replace(self.size, wanted=wanted)
        self._is_requested = True
        for slot in self._slots.values():
            slot.is_lost, slot.losses, slot.free_at = False, 0, 0.0
        if (count := self._largest(wanted)) < wanted:
            self.notes.append(
                f"{wanted} trainers cannot share the global batch evenly: {count} are used "
                "(--round-batch-size)"
            )

    def note_exit(self, failure: TaskFailure, now: float) -> None:
        """Note that a process has exited with an error, or while its generation ended."""
        self._running.discard(failure.task)
        if not self._is_innocent(failure):
            self._judge(failure, now)
        if self._phase is _Phase.TRAINING:
            self._phase, self._kill_at = _Phase.STOPPING, now + STOP_SECONDS

    def note_end(self, task: Task) -> None:
        """Note that a process has ended as it should, or will not be started."""
        self._running.discard(task)

    def lose(self, task: Task, now: float) -> None:
        """Note that a trainer on parameter servers is lost, while the others train on."""
        self._running.discard(task)
        self._lose_slot(task, now)
        self._has_lost = True

    def advance(self, now: float, step: int | None) -> Action | None:
        """Return what to do next; None for nothing."""
        if self._failed is not None:
            return self._failed
        if self._phase is _Phase.TRAINING:
            return self._change_size(now, step)
        if self._running:
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_at, self._was_killed = None, True
                return Kill()
            return None
        if self._phase is not _Phase.FORMING:
            self._count_idle(step)
            self._phase, self._since = _Phase.FORMING, now
        return self._form(now, step)

    def _is_innocent(self, failure: TaskFailure) -> bool:
        """Whether a process has not failed by itself."""
        if failure.code in (0, PREEMPTED) or failure.lost_peer:
            return True
        return self._was_killed or self._phase is _Phase.SAVING

    def _judge(self, failure: TaskFailure, now: float) -> None:
        decision = self.policy.decide(failure, now)
        slot = self._slots.get(failure.task)
        if decision.fails_job and (slot is None or not decision.is_lost):
            self._failed = self._failed or Fail(decision.reason, failure)
        elif slot is not None and decision.is_lost:
            self.notes.append(f"{decision.reason}: the job goes on without it")
            self._lose_slot(failure.task, now)
        elif slot is not None:
            self.notes.append(decision.reason)
            slot.free_at = now + (decision.delay or 0.0)

    def _lose_slot(self, task: Task, now: float) -> None:
        slot = self._slots[task]
        pause = min(self.size.rejoin_seconds * 2**slot.losses, _MAX_REJOIN_SECONDS)
        slot.is_lost, slot.losses, slot.free_at = True, slot.losses + 1, now + pause

    def _change_size(self, now: float, step: int | None) -> Action | None:
        """Stop a generation that should have another number of trainers."""
        possible = self._largest(len(self._free(now)))
        count = len(self.members)
        if self._has_lost:
            reason = "a trainer is lost"
        elif possible < count and self.size.wanted < count:
            reason = f"{self.size.wanted} trainers are wanted"
        elif possible > count and self._is_steady(now, step):
            reason = "more trainers can be used"
        else:
            return None
        if possible < self.size.minimum:
            return self._fail_for_lack(possible)
        self._phase, self._kill_at = _Phase.SAVING, now + self.grace
        return Save(f"{reason}: generation {self.number} saves and ends")

    def _is_steady(self, now: float, step: int | None) -> bool:
        has_steps = step is not None and step > (self._first_step or 0)
        return self._is_requested or (has_steps and now - self._since >= STEADY_SECONDS)

    def _free(self, now: float) -> list[Task]:
        """Return the slots that may be used now, the preferred ones first."""
        return [slot for slot, state in self._slots.items() if state.free_at <= now]

    def _largest(self, count: int) -> int:
        """Return how many of so many slots a generation can have; 0 for none."""
        most = min(count, self.size.wanted)
        sizes = [n for n in range(1, most + 1) if not self.shares or self.shares % n == 0]
        return max(sizes, default=0)

    def _count_idle(self, step: int | None) -> None:
        has_steps = step is not None and step > (self._first_step or 0)
        self._idle = 0 if has_steps or self._phase is _Phase.SAVING else self._idle + 1

    def _form(self, now: float, step: int | None) -> Action | None:
        if self._idle >= MAX_IDLE_GENERATIONS:
            return Fail(f"{self._idle} generations in succession have failed without a step")
        free = self._free(now)
        count = self._largest(len(free))
        soon = [s for s in self._slots.values() if s.free_at > now and not s.is_lost]
        if self._largest(len(free) + len(soon)) > count and (
            count < self.size.minimum or now < self._since + GATHER_SECONDS
        ):
            return None
        if count < self.size.minimum:
            return self._fail_for_lack(count)
        for slot in free[:count]:
            self._slots[slot].is_lost = False
        self.number += 1
        self.members = tuple(free[:count])
        self._running = {*self.members, *self.servers}
        self._phase, self._since, self._first_step = _Phase.TRAINING, now, step
        self._was_killed = self._has_lost = self._is_requested = False
        return Start(self.number, self.members)

    def _fail_for_lack(self, count: int) -> Fail:
        lost = [str(task) for task, slot in self._slots.items() if slot.is_lost]
        batch = " that can share the global batch evenly" if self.shares else ""
        return Fail(
            f"{count} trainers are left{batch}, and at least {self.size.minimum} are needed "
            f"(--min-workers); lost: {', '.join(lost) or 'none'}"
        )


def describe_members(members: Sequence[Task], ranks: Sequence[Task]) -> str:
    """Describe a generation: its slots, and their tasks where these have other names.

    >>> from phalanx.cluster.spec import Role
    >>> chief, first, second = Task(Role.CHIEF), Task(Role.WORKER), Task(Role.WORKER, 1)
    >>> describe_members([chief, second], [chief, first])
    'chief-0, worker-1 (as worker-0)'
    """
    pairs = zip(members, ranks, strict=True)
    return ", ".join(str(m) if m == rank else f"{m} (as {rank})" for m, rank in pairs)
