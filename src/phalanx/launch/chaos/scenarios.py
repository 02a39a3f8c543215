"""The faults that `phalanx chaos` can cause, and the seeded plan of them for a job."""

import random
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError

PAUSE_SECONDS = 30.0
CUT_SECONDS = 20.0
# Longer than any task waits for a peer that acknowledges nothing.
LONG_CUT_SECONDS = 90.0
AGAIN_SECONDS = 5.0
ALL = 10**6
"""Hits every task of a role."""
STARTING = "starting"
UNSAVED = "unsaved"


class Action(Enum):
    """What happens to a task."""

    KILL = signal.SIGKILL
    TERMINATE = signal.SIGTERM
    STOP = signal.SIGSTOP
    CUT = "its host is cut off from the network"
    CUT_SENDING = "nothing that its host sends arrives"
    CUT_RECEIVING = "nothing that is sent to its host arrives"
    FILL_DISK = "it cannot write files any more"
    FLIP_BIT = "a bit of the newest checkpoint is wrong, and it is killed"
    TRUNCATE = "the newest checkpoint is cut in half, and it is killed"


CUTS = (Action.CUT, Action.CUT_SENDING, Action.CUT_RECEIVING)
DAMAGES = (Action.FLIP_BIT, Action.TRUNCATE)


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
        when: What the chief does when it happens: `training`, `saving` or `evaluating`; empty for
            anything. Or `starting`, before the first step, or `unsaved`, before the first
            checkpoint.
        times: How often it happens.
        interval: How many seconds after its beginning it happens again.
        stagger: After how many seconds each further task is hit.
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

    @property
    def cuts(self) -> bool:
        """Whether the task needs a host of its own, which is cut off from the network."""
        return self.action in CUTS

    @property
    def ends_task(self) -> bool:
        """Whether the task must be started again."""
        return self.pause is None

    @property
    def comes_first(self) -> bool:
        """Whether it can only be the first fault of a job."""
        return self.when in (STARTING, UNSAVED)

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
        if self.action is Action.FILL_DISK and not hasattr(resource, "prlimit"):
            return "Linux"
        needed = 1 if self.count == ALL else self.count
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
            chosen += sorted(chance.sample(found, min(self.count, len(found))))
        return tuple(chosen)


_W, _P, _C = (Role.WORKER,), (Role.PS,), (Role.CHIEF,)
_NAMES = {
    Role.WORKER: "A worker",
    Role.PS: "A parameter server",
    Role.CHIEF: "The chief",
    Role.EVALUATOR: "The evaluator",
    Role.DISPATCHER: "The dispatcher of the data service",
    Role.DATA_WORKER: "A data worker",
}
_TRAINING = (Role.WORKER, Role.PS, Role.CHIEF)
_PAUSED = (*_TRAINING, Role.EVALUATOR)
_KILL, _TERM, _STOP = Action.KILL, Action.TERMINATE, Action.STOP


def _for_roles(
    roles: Sequence[Role], name: str, text: str, action: Action, pause: float | None = None
) -> list[Scenario]:
    return [
        Scenario(f"{role}-{name}", f"{_NAMES[role]} {text}.", (role,), action, pause)
        for role in roles
    ]


SCENARIOS = (
    *_for_roles(tuple(_NAMES), "killed", "is killed with SIGKILL", _KILL),
    *_for_roles(_TRAINING, "terminated", "gets SIGTERM, as at a preemption", _TERM),
    *_for_roles(_PAUSED, "stopped", "is stopped with SIGSTOP, for good", _STOP),
    *_for_roles(_PAUSED, "paused", f"is stopped for {PAUSE_SECONDS:.0f} s", _STOP, PAUSE_SECONDS),
    *_for_roles((Role.WORKER, Role.CHIEF), "partition",
                f"is cut off from the network for {CUT_SECONDS:.0f} s", Action.CUT, CUT_SECONDS),
    *(
        Scenario(f"{role}-killed-twice",
                 f"{_NAMES[role]} is killed, and killed again {AGAIN_SECONDS:.0f} s later.",
                 (role,), _KILL, times=2, interval=AGAIN_SECONDS)
        for role in _TRAINING
    ),
    Scenario("two-workers-killed", "Two workers are killed at once.", _W, _KILL, count=2),
    Scenario("all-workers-killed", "All workers are killed at once.", _W, _KILL, count=ALL),
    Scenario("two-ps-killed", "Two parameter servers are killed at once.", _P, _KILL, count=2),
    Scenario("ps-and-worker-killed", "A parameter server and a worker are killed at once.",
             (Role.PS, Role.WORKER), _KILL),
    Scenario("ps-killed-after-worker",
             "A worker is killed, and a parameter server 2 s later, while the worker comes back.",
             (Role.WORKER, Role.PS), _KILL, stagger=2.0),
    Scenario("all-killed", "All tasks are killed at once.", (), _KILL),
    Scenario("chief-terminated-twice", "The chief gets SIGTERM, and again while it saves.",
             _C, _TERM, times=2, interval=0.2),
    Scenario("all-terminated", "All tasks get SIGTERM, one second after the other.", (), _TERM,
             stagger=1.0),
    Scenario("worker-slowed", "A worker runs for a fifth of the time only, for 20 s.", _W, _STOP,
             0.4, times=40, interval=0.5),
    Scenario("worker-long-partition",
             f"A worker is cut off from the network for {LONG_CUT_SECONDS:.0f} s, longer than its "
             "peers wait for it.", _W, Action.CUT, LONG_CUT_SECONDS),
    Scenario("all-workers-partition",
             f"All workers are cut off from the network for {CUT_SECONDS:.0f} s.", _W, Action.CUT,
             CUT_SECONDS, count=ALL),
    Scenario("worker-one-way-cut",
             f"Nothing that a worker sends arrives for {CUT_SECONDS:.0f} s.", _W,
             Action.CUT_SENDING, CUT_SECONDS),
    Scenario("worker-reply-lost",
             f"Nothing that is sent to a worker arrives for {CUT_SECONDS:.0f} s: the answers to "
             "its updates are lost.", _W, Action.CUT_RECEIVING, CUT_SECONDS),
    Scenario("worker-flapping", "A worker is cut off from the network for 4 s, every 8 s.", _W,
             Action.CUT, 4.0, times=4, interval=8.0),
    Scenario("chief-disk-full", "The chief can write nothing to files for 30 s.", _C,
             Action.FILL_DISK, PAUSE_SECONDS),
    Scenario("checkpoint-bit-flipped",
             "A bit of the newest checkpoint is flipped, and the chief is killed.", _C,
             Action.FLIP_BIT),
    Scenario("checkpoint-truncated",
             "The newest checkpoint is cut in half, and the chief is killed.", _C,
             Action.TRUNCATE),
    *(
        Scenario(f"{role}-killed-before-first-step",
                 f"{_NAMES[role]} is killed before the first step.", (role,), _KILL, when=STARTING)
        for role in _TRAINING
    ),
    Scenario("ps-killed-before-first-checkpoint",
             "A parameter server is killed before there is a checkpoint.", _P, _KILL,
             when=UNSAVED),
    *(
        Scenario(f"{role}-killed-while-saving",
                 f"{_NAMES[role]} is killed while the chief saves.", (role,), _KILL, when="saving")
        for role in _TRAINING
    ),
    *(
        Scenario(f"{role}-killed-while-evaluating",
                 f"{_NAMES[role]} is killed during an evaluation.", (role,), _KILL,
                 when="evaluating")
        for role in _TRAINING
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A scenario, and the tasks that it hits."""

    scenario: Scenario
    tasks: tuple[Task, ...]


def plan_faults(
    tasks: Sequence[Task],
    names: Sequence[str],
    count: int,
    seed: int,
    network_obstacle: str | None = None,
) -> list[Fault]:
    """Plan faults for the tasks of a job.

    Args:
        tasks: The tasks of the job.
        names: The scenarios to run, each once, in this order; if empty, `count` are drawn, of those
            that do not wait for something that the chief may never do.
        count: How many scenarios to draw.
        seed: The same seed draws the same faults.
        network_obstacle: Why tasks cannot be cut off from the network here; None if they can.

    Raises:
        JobError: There is no such scenario, the job has no such task, or the scenario cannot run
            here.
    """
    chance = random.Random(seed)
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in names if name not in known]:
        raise JobError(f"there is no scenario {unknown[0]}: `phalanx chaos --list` lists all")
    for name in names:
        if missing := known[name].find_obstacle(tasks):
            raise JobError(f"{name} needs {missing}")
    if late := [name for name in names[1:] if known[name].comes_first]:
        raise JobError(f"{late[0]} must be the first scenario: later the job has made steps")
    cuts = [name for name in names if known[name].cuts]
    if network_obstacle and cuts:
        raise JobError(f"{cuts[0]} cannot run here: {network_obstacle}")
    possible = [
        scenario
        for scenario in SCENARIOS
        if not scenario.find_obstacle(tasks)
        and not (scenario.when or scenario.action in DAMAGES)
        and not (scenario.cuts and network_obstacle)
    ]
    chosen = [known[name] for name in names] or [chance.choice(possible) for _ in range(count)]
    return [Fault(scenario, scenario.choose_tasks(tasks, chance)) for scenario in chosen]
