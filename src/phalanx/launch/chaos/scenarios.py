"""The faults that `phalanx chaos` can cause, and the seeded plan of them for a job."""

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError

PAUSE_SECONDS = 30.0
CUT_SECONDS = 20.0
AGAIN_SECONDS = 5.0


ALL = 10**6
"""Hits every task of a role."""


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
        number: The signal that the tasks receive; None if their hosts are cut off from the network.
        pause: After how many seconds SIGCONT follows, or the cut ends; None for never.
        count: How many tasks of each role it hits, at most.
        when: What the chief does when it happens: `training`, `saving` or `evaluating`; empty for
            anything.
        times: How often it happens.
        interval: How many seconds after its beginning it happens again.
        stagger: After how many seconds each further task is hit.
        one_way: Whether the host that is cut off still receives what others send.
    """

    name: str
    text: str
    roles: tuple[Role, ...]
    number: signal.Signals | None
    pause: float | None = None
    count: int = 1
    when: str = ""
    times: int = 1
    interval: float = 0.0
    stagger: float = 0.0
    one_way: bool = False

    @property
    def cuts(self) -> bool:
        """Whether the task needs a host of its own, which is cut off from the network."""
        return self.number is None

    @property
    def ends_task(self) -> bool:
        """Whether the task must be started again."""
        return self.pause is None

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


_ACTIONS = (
    ("killed", "is killed with SIGKILL", signal.SIGKILL, None),
    ("terminated", "gets SIGTERM, as at a preemption", signal.SIGTERM, None),
    ("stopped", "is stopped with SIGSTOP, for good", signal.SIGSTOP, None),
    ("paused", f"is stopped for {PAUSE_SECONDS:.0f} s", signal.SIGSTOP, PAUSE_SECONDS),
    ("partition", f"is cut off from the network for {CUT_SECONDS:.0f} s", None, CUT_SECONDS),
)
_NAMES = {
    Role.WORKER: "A worker",
    Role.PS: "A parameter server",
    Role.CHIEF: "The chief",
    Role.EVALUATOR: "The evaluator",
}
_KILL = signal.SIGKILL
SCENARIOS = (
    *(
        Scenario(f"{role}-{name}", f"{_NAMES[role]} {text}.", (role,), number, pause)
        for role in _NAMES
        for name, text, number, pause in _ACTIONS
        if (pause is None or role in (Role.WORKER, Role.CHIEF))
        and (number is not signal.SIGTERM or role is not Role.EVALUATOR)
    ),
    Scenario("two-workers-killed", "Two workers are killed at once.", (Role.WORKER,), _KILL,
             count=2),
    Scenario("all-workers-killed", "All workers are killed at once.", (Role.WORKER,), _KILL,
             count=ALL),
    Scenario("two-ps-killed", "Two parameter servers are killed at once.", (Role.PS,), _KILL,
             count=2),
    Scenario("ps-and-worker-killed", "A parameter server and a worker are killed at once.",
             (Role.PS, Role.WORKER), _KILL),
    Scenario("all-killed", "All tasks are killed at once.", (), _KILL),
    *(
        Scenario(f"{role}-killed-twice",
                 f"{_NAMES[role]} is killed, and killed again {AGAIN_SECONDS:.0f} s later.",
                 (role,), _KILL, times=2, interval=AGAIN_SECONDS)
        for role in (Role.WORKER, Role.PS, Role.CHIEF)
    ),
    Scenario("chief-terminated-twice", "The chief gets SIGTERM, and again while it saves.",
             (Role.CHIEF,), signal.SIGTERM, times=2, interval=0.2),
    Scenario("all-terminated", "All tasks get SIGTERM, one second after the other.", (),
             signal.SIGTERM, stagger=1.0),
    Scenario("worker-one-way-cut",
             f"Nothing that a worker sends arrives for {CUT_SECONDS:.0f} s.", (Role.WORKER,), None,
             CUT_SECONDS, one_way=True),
    Scenario("worker-flapping", "A worker is cut off from the network for 4 s, every 8 s.",
             (Role.WORKER,), None, 4.0, times=4, interval=8.0),
    Scenario("chief-killed-while-saving", "The chief is killed while it saves.", (Role.CHIEF,),
             _KILL, when="saving"),
    Scenario("worker-killed-while-saving", "A worker is killed while the chief saves.",
             (Role.WORKER,), _KILL, when="saving"),
    Scenario("chief-killed-while-evaluating", "The chief is killed while it evaluates.",
             (Role.CHIEF,), _KILL, when="evaluating"),
    Scenario("worker-killed-while-evaluating", "A worker is killed during an evaluation.",
             (Role.WORKER,), _KILL, when="evaluating"),
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
    cuts = [name for name in names if known[name].cuts]
    if network_obstacle and cuts:
        raise JobError(f"{cuts[0]} cannot run here: {network_obstacle}")
    possible = [
        scenario
        for scenario in SCENARIOS
        if not scenario.find_obstacle(tasks)
        and not scenario.when
        and not (scenario.cuts and network_obstacle)
    ]
    chosen = [known[name] for name in names] or [chance.choice(possible) for _ in range(count)]
    return [Fault(scenario, scenario.choose_tasks(tasks, chance)) for scenario in chosen]
