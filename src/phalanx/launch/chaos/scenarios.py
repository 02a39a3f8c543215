"""What a fault is, and the seeded plan of faults for a job."""

import random
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from phalanx.cluster.spec import Role, Task

PAUSE_SECONDS = 30.0
CUT_SECONDS = 20.0
# Longer than any task waits for a peer that acknowledges nothing.
LONG_CUT_SECONDS = 90.0
AGAIN_SECONDS = 5.0
ALL = 10**6
"""Hits every task of a role."""
HALF = -1
"""Hits half of the tasks of a role, or one more."""
STARTING = "starting"
PREPARING = "preparing"
UNSAVED = "unsaved"
FINISHED = "finished"


class Action(Enum):
    """What happens to a task."""

    KILL = signal.SIGKILL
    TERMINATE = signal.SIGTERM
    STOP = signal.SIGSTOP
    CUT = "its host is cut off from the network"
    CUT_SENDING = "nothing that its host sends arrives"
    CUT_RECEIVING = "nothing that is sent to its host arrives"
    SPLIT = "the first half of the tasks and the second cannot reach each other"
    EXPIRE = "it gets SIGTERM, and SIGKILL when the pause is over"
    FILL_DISK = "it cannot write files any more"
    LIMIT_MEMORY = "it gets no more memory"
    FLIP_BIT = "a bit of the newest checkpoint is wrong, and it is killed"
    TRUNCATE = "the newest checkpoint is cut in half, and it is killed"
    EMPTY = "the files of the newest checkpoint are empty, and it is killed"
    DELETE = "the files of the newest checkpoint are gone, and it is killed"


CUTS = (Action.CUT, Action.CUT_SENDING, Action.CUT_RECEIVING, Action.SPLIT)
DAMAGES = (Action.FLIP_BIT, Action.TRUNCATE, Action.EMPTY, Action.DELETE)


@dataclass(frozen=True)
class FaultEvent:
    """Something that happens to a task during a fault.

    Attributes:
        after: How many seconds after the beginning of the fault.
        task: The task.
        begins: Whether the task is hit now, and not relieved.
    """

    after: float
    task: Task
    begins: bool


@dataclass(frozen=True)
class Scenario:
    """One kind of fault.

    Attributes:
        name: Its name on the command line.
        text: What it does.
        roles: The roles of the tasks that it hits; without any, it hits all tasks.
        action: What happens to the tasks.
        pause: After how many seconds that ends; None for never.
        count: How many tasks of each role it hits, at most.
        when: What the chief does when it happens: `training`, `saving`, `evaluating` or `finished`;
            empty for anything. Or `starting`, when the tasks have been started, `preparing`, before
            the first step, or `unsaved`, before the first checkpoint.
        times: How often it happens.
        interval: How many seconds after its beginning it happens again.
        stagger: After how many seconds each further task is hit.
        ends_job: Whether the job must fail, and say why, because the fault does not end.
    """

    name: str
    text: str
    roles: tuple[Role, ...]
    action: Action
    pause: float | None = None
    count: int = 1
    when: str = ""
    times: int = 1
    interval: float = 0.0
    stagger: float = 0.0
    ends_job: bool = False

    @property
    def cuts(self) -> bool:
        """Whether the task needs a host of its own, which is cut off from the network."""
        return self.action in CUTS

    @property
    def ends_task(self) -> bool:
        """Whether the task must be started again."""
        if self.when == FINISHED or self.cuts:
            return False
        return self.pause is None or self.action is Action.EXPIRE

    @property
    def comes_first(self) -> bool:
        """Whether it can only be the first fault of a job."""
        return self.when in (STARTING, PREPARING, UNSAVED)

    @property
    def comes_last(self) -> bool:
        """Whether it can only be the last fault of a job."""
        return self.ends_job or self.when == FINISHED or self.lasts

    @property
    def lasts(self) -> bool:
        """Whether a task is never relieved, nor started again."""
        return self.cuts and self.pause is None

    def make_timetable(self, tasks: Sequence[Task]) -> list[FaultEvent]:
        """Return what happens to the tasks that it hits, in the order of time."""
        events = []
        for turn in range(self.times):
            for number, task in enumerate(tasks):
                begin = turn * self.interval + number * self.stagger
                events.append(FaultEvent(begin, task, begins=True))
                if self.pause is not None:
                    events.append(FaultEvent(begin + self.pause, task, begins=False))
        return sorted(events, key=lambda event: event.after)

    def find_obstacle(self, tasks: Sequence[Task]) -> str | None:
        """Return what a job with these tasks lacks for it; None if it lacks nothing."""
        limits = (Action.FILL_DISK, Action.LIMIT_MEMORY)
        if self.action in limits and not hasattr(resource, "prlimit"):
            return "Linux"
        needed = 2 if self.action is Action.SPLIT else 1
        if self.count not in (ALL, HALF):
            needed = self.count
        for role in self.roles:
            found = sum(task.role is role for task in tasks)
            if found < needed:
                return f"{needed} {role}, and the job has {found}"
        return None

    def choose_tasks(self, tasks: Sequence[Task], chance: random.Random) -> tuple[Task, ...]:
        """Choose the tasks of a job that it hits."""
        if not self.roles:
            return tuple(tasks)
        chosen: list[Task] = []
        for role in self.roles:
            found = [task for task in tasks if task.role is role]
            count = (len(found) + 1) // 2 if self.count == HALF else self.count
            chosen += sorted(chance.sample(found, min(count, len(found))))
        return tuple(chosen)


@dataclass(frozen=True)
class Fault:
    """A scenario, and the tasks that it hits."""

    scenario: Scenario
    tasks: tuple[Task, ...]
