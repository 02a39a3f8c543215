"""The faults that `phalanx chaos` can cause, and the seeded plan of them for a job."""

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError

PAUSE_SECONDS = 30.0
CUT_SECONDS = 20.0


@dataclass(frozen=True)
class Scenario:
    """One kind of fault.

    Attributes:
        name: Its name on the command line.
        text: What it does.
        role: The role of the task that it hits.
        number: The signal that the task receives; None if its host is cut off from the network.
        pause: After how many seconds SIGCONT follows, or the cut ends; None for never.
    """

    name: str
    text: str
    role: Role
    number: signal.Signals | None
    pause: float | None = None

    @property
    def cuts(self) -> bool:
        """Whether the task needs a host of its own, which is cut off from the network."""
        return self.number is None

    @property
    def ends_task(self) -> bool:
        """Whether the task must be started again."""
        return self.pause is None


_ACTIONS = (
    ("killed", "is killed with SIGKILL", signal.SIGKILL, None),
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
SCENARIOS = tuple(
    Scenario(f"{role}-{name}", f"{_NAMES[role]} {text}.", role, number, pause)
    for role in _NAMES
    for name, text, number, pause in _ACTIONS
    if pause is None or role in (Role.WORKER, Role.CHIEF)
)


@dataclass(frozen=True)
class Fault:
    """A scenario, and the task that it hits."""

    scenario: Scenario
    task: Task


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
        names: The scenarios to run, each once, in this order; if empty, `count` are drawn.
        count: How many scenarios to draw.
        seed: The same seed draws the same faults.
        network_obstacle: Why tasks cannot be cut off from the network here; None if they can.

    Raises:
        JobError: There is no such scenario, the job has no such task, or the scenario cannot run
            here.
    """
    chance = random.Random(seed)
    known = {scenario.name: scenario for scenario in SCENARIOS}
    roles = {task.role for task in tasks}
    if unknown := [name for name in names if name not in known]:
        raise JobError(f"there is no scenario {unknown[0]}: `phalanx chaos --list` lists all")
    if missing := [name for name in names if known[name].role not in roles]:
        raise JobError(
            f"{missing[0]} needs a {known[missing[0]].role}, which the job does not have"
        )
    cuts = [name for name in names if known[name].cuts]
    if network_obstacle and cuts:
        raise JobError(f"{cuts[0]} cannot run here: {network_obstacle}")
    possible = [
        scenario
        for scenario in SCENARIOS
        if scenario.role in roles and not (scenario.cuts and network_obstacle)
    ]
    chosen = [known[name] for name in names] or [chance.choice(possible) for _ in range(count)]
    return [
        Fault(scenario, chance.choice([task for task in tasks if task.role is scenario.role]))
        for scenario in chosen
    ]
