"""Which trainers of an elastic job train together, in made-up clusters without processes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.launch.processes.generations import (
    GATHER_SECONDS,
    MAX_IDLE_GENERATIONS,
    STEADY_SECONDS,
    STOP_SECONDS,
    ElasticSize,
    Fail,
    Generations,
    Kill,
    Save,
    Start,
)
from phalanx.launch.processes.restarts import PREEMPTED, RestartPolicy, TaskFailure

CHIEF = Task(Role.CHIEF)
WORKERS = [Task(Role.WORKER, index) for index in range(4)]
SERVER = Task(Role.PS)
GRACE = 30.0
REJOIN = 300.0


def make(
    *, slots: int = 4, wanted: int = 3, minimum: int = 2, restarts: int = 0, shares: int = 0
) -> Generations:
    size = ElasticSize((CHIEF, *WORKERS)[:slots], wanted, minimum, REJOIN)
    found = Generations(size, RestartPolicy(restarts), GRACE)
    found.shares = shares
    return found


def end_all(generations: Generations, now: float, code: int = PREEMPTED) -> None:
    for task in generations.members:
        generations.note_exit(TaskFailure(task, code), now)


def test_a_killed_trainer_is_replaced_by_a_spare_slot() -> None:
    job = make()
    job.note_exit(TaskFailure(WORKERS[0], -9), 1)
    assert job.advance(1, 5) is None, "the others end by themselves"
    for task in (CHIEF, WORKERS[1]):
        job.note_exit(TaskFailure(task, 1, lost_peer=True), 2)
    assert job.advance(2, 5) == Start(2, (CHIEF, WORKERS[1], WORKERS[2]))


def test_without_a_spare_slot_the_next_generation_is_smaller() -> None:
    job = make(slots=3)
    end_all(job, 1, -9)
    assert isinstance(job.advance(1, 5), Fail), "all were killed"
    job = make(slots=3)
    job.note_exit(TaskFailure(CHIEF, -9), 1)
    assert job.advance(1 + STOP_SECONDS - 0.1, 5) is None
    assert job.advance(1 + STOP_SECONDS, 5) == Kill()
    for task in WORKERS[:2]:
        job.note_exit(TaskFailure(task, -9), 7)
    assert job.advance(7, 5) == Start(2, (WORKERS[0], WORKERS[1])), "another one leads"


def test_a_trainer_with_a_budget_comes_back_in_the_same_place() -> None:
    job = make(slots=3, restarts=1)
    job.note_exit(TaskFailure(WORKERS[0], -9), 1)
    for task in (CHIEF, WORKERS[1]):
        job.note_exit(TaskFailure(task, 1, lost_peer=True), 2)
    assert job.advance(2, 5) == Start(2, (CHIEF, WORKERS[0], WORKERS[1]))
    assert job.notes == ["worker-0 was killed by SIGKILL (the system does that when memory runs "
                         "out): restart 1 of 1"]  # fmt: skip


def test_a_delayed_restart_is_waited_for_only_for_a_while() -> None:
    job = make(slots=3, restarts=9)
    now = 0.0
    for attempt in range(6):
        job.note_exit(TaskFailure(WORKERS[0], -9), now)
        for task in set(job.members) - {WORKERS[0]}:
            job.note_exit(TaskFailure(task, PREEMPTED), now)
        while (action := job.advance(now, attempt)) is None:
            now += 0.5
        assert isinstance(action, Start)
        if attempt < 5:
            assert len(action.members) == 3
            now += 1
    # The sixth delay is 16 s.
    assert job.members == (CHIEF, WORKERS[1])
    assert GATHER_SECONDS == 10
    now += STEADY_SECONDS
    assert job.advance(now, 99) == Save("more trainers can be used: generation 7 saves and ends")
    end_all(job, now + 1)
    assert job.advance(now + 1, 99) == Start(8, (CHIEF, WORKERS[0], WORKERS[1]))


def test_a_lost_slot_is_tried_again_and_avoided_for_longer() -> None:
    job = make(slots=3)
    job.note_exit(TaskFailure(WORKERS[1], -9), 0)
    for task in (CHIEF, WORKERS[0]):
        job.note_exit(TaskFailure(task, 1, lost_peer=True), 0)
    assert job.advance(0, 5) == Start(2, (CHIEF, WORKERS[0]))
    assert job.advance(REJOIN - 1, 50) is None
    assert isinstance(job.advance(REJOIN, 50), Save)
    end_all(job, REJOIN)
    assert job.advance(REJOIN, 50) == Start(3, (CHIEF, WORKERS[0], WORKERS[1]))
    job.note_exit(TaskFailure(WORKERS[1], -9), 400)
    for task in (CHIEF, WORKERS[0]):
        job.note_exit(TaskFailure(task, 1, lost_peer=True), 400)
    assert isinstance(job.advance(400, 60), Start)
    assert job.advance(400 + 2 * REJOIN - 1, 70) is None
    assert isinstance(job.advance(400 + 2 * REJOIN, 70), Save)


def test_below_the_minimum_the_job_fails_and_names_the_lost() -> None:
    job = make(slots=3, minimum=3)
    job.note_exit(TaskFailure(WORKERS[0], -9), 0)
    for task in (CHIEF, WORKERS[1]):
        job.note_exit(TaskFailure(task, 1, lost_peer=True), 0)
    assert job.advance(0, 5) == Fail(
        "2 trainers are left, and at least 3 are needed (--min-workers); lost: worker-0"
    )


def test_an_error_of_the_program_is_no_loss_of_a_worker() -> None:
    job = make()
    failure = TaskFailure(WORKERS[0], 1, "ValueError: x", 5)
    job.note_exit(failure, 0)
    assert job.advance(0, 5) == Fail("worker-0 failed with exit code 1", failure)


def test_only_numbers_that_share_the_batch_are_used() -> None:
    job = make(slots=4, wanted=4, minimum=1, shares=32)
    job.note_exit(TaskFailure(WORKERS[2], -9), 0)
    for task in job.members[:3]:
        job.note_exit(TaskFailure(task, 1, lost_peer=True), 0)
    assert job.advance(0, 5) == Start(2, (CHIEF, WORKERS[0]))
    job.request(3)
    assert job.advance(1, 6) is None
    assert job.notes.pop().startswith("3 trainers cannot share the global batch evenly: 2 are used")


def test_a_request_changes_the_number_after_a_save() -> None:
    job = make(wanted=2)
    job.request(4)
    assert isinstance(job.advance(1, 3), Save)
    # One of them fails while it saves: that is forgotten.
    job.note_exit(TaskFailure(CHIEF, 1, "KeyError: 'x'", 3), 2)
    assert job.advance(1 + GRACE, 3) == Kill()
    job.note_exit(TaskFailure(WORKERS[0], -9), 32)
    assert job.advance(32, 3) == Start(2, (CHIEF, *WORKERS[:3]))
    job.request(2)
    assert isinstance(job.advance(33, 3), Save)


def test_generations_without_a_step_end_the_job() -> None:
    job = make(slots=2, wanted=2)
    for now in range(MAX_IDLE_GENERATIONS):
        assert not isinstance(job.advance(now, 0), Fail)
        for task in job.members:
            job.note_exit(TaskFailure(task, 1, lost_peer=True), now)
    action = job.advance(99, 0)
    assert action == Fail("10 generations in succession have failed without a step")


def test_on_parameter_servers_the_others_train_until_they_have_saved() -> None:
    size = ElasticSize((CHIEF, *WORKERS[:2]), 3, 2, REJOIN)
    job = Generations(size, RestartPolicy(0), GRACE, (SERVER,))
    job.lose(WORKERS[0], 1)
    assert job.advance(1, 5) == Save("a trainer is lost: generation 1 saves and ends")
    for task in (CHIEF, WORKERS[1]):
        job.note_exit(TaskFailure(task, PREEMPTED), 2)
    assert job.advance(2, 5) is None, "the server still runs"
    job.note_exit(TaskFailure(SERVER, PREEMPTED), 3)
    assert job.advance(3, 5) == Start(2, (CHIEF, WORKERS[1]))


@dataclass
class Simulation:
    """A made-up cluster: processes that train, crash, hang and save, by a seeded chance.

    Faults stop at half of the time, so that the job must be whole again at the end.
    """

    seed: int
    now: float = 0.0
    step: int = 0
    running: dict[Task, float | None] = field(default_factory=dict)
    """The processes, and when they will have ended by themselves; None if they go on."""
    broken_until: dict[Task, float] = field(default_factory=dict)
    lost_at: dict[Task, float] = field(default_factory=dict)

    END = 8 * 3600.0

    def __post_init__(self) -> None:
        self.chance = chance = random.Random(self.seed)
        self.rate = chance.choice([0.001, 0.004, 0.03])
        slots = chance.randint(1, 5)
        wanted = chance.randint(1, slots)
        minimum = chance.randint(1, wanted)
        self.servers = (SERVER,) if chance.random() < 0.3 else ()
        size = ElasticSize((CHIEF, *WORKERS)[:slots], wanted, minimum, REJOIN)
        self.policy = RestartPolicy(chance.choice([0, 1, 3]))
        self.job = Generations(size, self.policy, GRACE, self.servers)
        self.job.shares = chance.choice([0, 0, 12, 16])
        if self.job._largest(wanted) != wanted:
            self.job.shares = 0
        self.start(self.job.members)

    def start(self, members: tuple[Task, ...]) -> None:
        assert not self.running, "two generations never run at the same time"
        size = self.job.size
        assert size.minimum <= len(members) <= size.wanted <= len(size.slots)
        assert len(set(members)) == len(members)
        assert set(members) <= set(size.slots)
        assert not self.job.shares or self.job.shares % len(members) == 0
        for task in members:
            assert self.now >= self.lost_at.get(task, -REJOIN) + REJOIN, "a lost slot is avoided"
            self.policy.start(task, self.step, self.now)
        self.running = dict.fromkeys((*members, *self.servers))

    def run(self) -> Fail | None:
        """Run until the job fails, or until the end; return why it has failed."""
        while self.now < self.END:
            self.now += self.chance.choice([0.5, 2.0, 60.0])
            faulty = self.now < self.END / 2
            if faulty:
                self.disturb()
            self.end_processes()
            if not self.job.is_ending and len(self.running) == len(
                {*self.job.members, *self.servers}
            ):
                self.step += self.chance.randrange(3)
            action = self.job.advance(self.now, self.step)
            self.job.notes.clear()
            if isinstance(action, Fail):
                return action
            if isinstance(action, Start):
                self.start(action.members)
            elif isinstance(action, Save):
                # Some trainers never finish: they are killed.
                for task in self.running:
                    hangs = self.chance.random() < 0.1
                    self.running[task] = None if hangs else self.now + self.chance.uniform(0, 20)
            elif isinstance(action, Kill):
                for task in self.running:
                    self.running[task] = self.now
        return None

    def disturb(self) -> None:
        training = [task for task in self.running if task not in self.servers]
        if training and not self.job.is_ending and self.chance.random() < self.rate:
            count = self.chance.choice([1, 1, 1, 2, len(training)])
            for task in self.chance.sample(training, min(count, len(training))):
                self.crash(task)
        if self.chance.random() < 0.005:
            size = self.job.size
            self.job.request(self.chance.randint(size.minimum, len(size.slots)))
            self.lost_at.clear()

    def crash(self, task: Task) -> None:
        del self.running[task]
        failure = TaskFailure(task, self.chance.choice([-9, -9, -15, 1]), step=self.step)
        if not self.servers:
            before = self.job._slots[task].losses
            self.job.note_exit(failure, self.now)
            if self.job._slots[task].losses > before:
                self.lost_at[task] = self.now
            for other in self.running:
                hangs = self.chance.random() < 0.2
                self.running[other] = None if hangs else self.now + self.chance.uniform(0, 4)
            return
        if self.job.is_ending:
            self.job.note_exit(failure, self.now)
            return
        decision = self.policy.decide(failure, self.now)
        if decision.is_lost:
            self.job.lose(task, self.now)
            self.lost_at[task] = self.now
        else:
            self.running[task] = None  # restarted alone

    def end_processes(self) -> None:
        ended = [t for t, end in self.running.items() if end is not None and end <= self.now]
        for task in ended:
            del self.running[task]
            failure = TaskFailure(task, self.chance.choice([PREEMPTED, 1]), lost_peer=True)
            self.job.note_exit(failure, self.now)


@pytest.mark.parametrize("block", range(4))
def test_in_thousands_of_histories_the_job_recovers_or_says_why_not(block: int) -> None:
    failures = 0
    for seed in range(block * 250, (block + 1) * 250):
        simulation = Simulation(seed)
        failed = simulation.run()
        if failed is not None:
            failures += 1
            assert "trainers are left" in failed.reason or "without a step" in failed.reason, seed
            continue
        # Four hours without a fault: every slot has been tried again.
        job = simulation.job
        assert not job.is_ending, f"seed {seed} still waits"
        assert len(job.members) == job._largest(job.size.wanted), f"seed {seed} is too small"
    assert 0 < failures < 200
