"""The faults that `phalanx chaos` can cause, and which of them a job gets."""

import random
from collections.abc import Sequence

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError
from phalanx.launch.chaos.scenarios import (
    AGAIN_SECONDS,
    ALL,
    CUT_SECONDS,
    DAMAGES,
    FINISHED,
    HALF,
    LONG_CUT_SECONDS,
    PAUSE_SECONDS,
    PREPARING,
    STARTING,
    UNSAVED,
    Action,
    Fault,
    Scenario,
)

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
_ENDLESS = 1000
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
    *_for_roles(_PAUSED, "terminated", "gets SIGTERM, as at a preemption", _TERM),
    *_for_roles(_PAUSED, "stopped",
                "is stopped with SIGSTOP, for good: its port accepts, and never answers", _STOP),
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
    Scenario("chief-deadline-passed", "The chief gets SIGTERM, and SIGKILL half a second later.",
             _C, Action.EXPIRE, 0.5),
    Scenario("all-deadline-passed", "All tasks get SIGTERM, and SIGKILL half a second later.", (),
             Action.EXPIRE, 0.5),
    Scenario("dispatcher-and-chief-killed",
             "The dispatcher is killed with the chief: its journal is ahead of the checkpoint.",
             (Role.DISPATCHER, Role.CHIEF), _KILL),
    Scenario("four-data-workers-killed", "Four data workers are killed at once.",
             (Role.DATA_WORKER,), _KILL, count=4),
    Scenario("worker-out-of-memory", "A worker gets no more memory.", _W, Action.LIMIT_MEMORY),
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
    Scenario("half-of-workers-flapping",
             "Half of the workers are cut off from the network for 4 s, every 8 s.", _W,
             Action.CUT, 4.0, count=HALF, times=4, interval=8.0),
    Scenario("bridge-partition",
             "Two halves of the workers cannot reach each other for "
             f"{CUT_SECONDS:.0f} s; both reach all other tasks.", _W, Action.SPLIT, CUT_SECONDS,
             count=ALL),
    Scenario("worker-cut-off", "A worker is cut off from the network for good.", _W, Action.CUT),
    Scenario("chief-disk-full", "The chief can write nothing to files for 30 s.", _C,
             Action.FILL_DISK, PAUSE_SECONDS),
    Scenario("checkpoint-bit-flipped",
             "A bit of the newest checkpoint is flipped, and the chief is killed.", _C,
             Action.FLIP_BIT),
    Scenario("checkpoint-truncated",
             "The newest checkpoint is cut in half, and the chief is killed.", _C,
             Action.TRUNCATE),
    Scenario("checkpoint-unsynced",
             "The files of the newest checkpoint are empty, as after a loss of power, and the "
             "chief is killed.", _C, Action.EMPTY),
    Scenario("checkpoint-deleted",
             "The newest checkpoint is deleted, and the chief is killed.", _C, Action.DELETE),
    *(
        Scenario(f"{role}-never-starts", f"{_NAMES[role]} is stopped before it does anything.",
                 (role,), _STOP, when=STARTING)
        for role in _TRAINING
    ),
    Scenario("worker-killed-while-preparing",
             "A worker is killed before the first step, while it makes its data.", _W, _KILL,
             when=PREPARING),
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
                 f"{_NAMES[role]} is killed during a save.", (role,), _KILL, when="saving")
        for role in _TRAINING
    ),
    *(
        Scenario(f"{role}-killed-while-evaluating",
                 f"{_NAMES[role]} is killed during an evaluation.", (role,), _KILL,
                 when="evaluating")
        for role in _TRAINING
    ),
    Scenario("worker-killed-at-the-end", "A worker is killed when the run has made its last step.",
             _W, _KILL, when=FINISHED),
    Scenario("reset-limit", "The chief is killed again and again: the job must end.", _C, _KILL,
             times=_ENDLESS, interval=2.0, ends_job=True),
    Scenario("below-min-workers", "All workers are killed again and again: the job must end.", _W,
             _KILL, count=ALL, times=_ENDLESS, interval=2.0, ends_job=True),
    Scenario("all-hosts-excluded", "All tasks are killed again and again: the job must end.", (),
             _KILL, times=_ENDLESS, interval=2.0, ends_job=True),
)  # fmt: skip


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
    if early := [name for name in names[:-1] if known[name].comes_last]:
        raise JobError(f"{early[0]} must be the last scenario: it does not end before the job")
    cuts = [name for name in names if known[name].cuts]
    if network_obstacle and cuts:
        raise JobError(f"{cuts[0]} cannot run here: {network_obstacle}")
    possible = [
        scenario
        for scenario in SCENARIOS
        if not scenario.find_obstacle(tasks)
        and not (scenario.when or scenario.action in DAMAGES or scenario.comes_last)
        and not (scenario.cuts and network_obstacle)
    ]
    chosen = [known[name] for name in names] or [chance.choice(possible) for _ in range(count)]
    return [Fault(scenario, scenario.choose_tasks(tasks, chance)) for scenario in chosen]
