"""Made-up histories of asynchronous training: dead and cut off workers, dead chiefs, checkpoints.

The positions are the real ones; parameter servers and workers are made up. Everything that happens
is drawn by a seed, which a failure names.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from phalanx.train.engines.shard_positions import ShardPositions

TRAINERS, STORES, BATCHES, PASSES = 3, 2, 7, 2
Batch = tuple[int, int, int]


@dataclass
class Server:
    """A parameter server: what it has applied, and the number of each trainer's next update."""

    applied: Counter[Batch] = field(default_factory=Counter)
    expected: list[int] = field(default_factory=lambda: [0] * TRAINERS)

    def apply(self, batch: Batch, number: int) -> None:
        if number >= self.expected[batch[0]]:
            self.expected[batch[0]] = number + 1
            self.applied[batch] += 1


@dataclass
class Iterator:
    index: int
    number: int


@dataclass
class Call:
    """The steps that a worker makes; it stops between two servers as well."""

    steps: int
    iterator: Iterator
    trainer: int
    passes: int
    done: int = 0
    store: int = 0


class History:
    """One run, with its faults."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.halves = 0
        self.saved: tuple[list[Counter[Batch]], tuple[int, ...]] = (
            [Counter() for _ in range(STORES)],
            (),
        )
        self.start()

    def start(self) -> None:
        """Start the chief, on new variables; calls of an earlier one change nothing."""
        weights, shards = self.saved
        self.servers = [Server(Counter(each)) for each in weights]
        self.positions = ShardPositions(TRAINERS)
        self.positions.restore(0, 0, shards)
        self.stray: list[Call] = []
        self.answers: list[tuple[int, int]] = []
        self.open()

    def open(self) -> None:
        self.positions.open()
        self.iterators: list[Iterator | None] = [None] * TRAINERS
        self.calls: list[Call | None] = [None] * TRAINERS
        self.waiting: list[int] = []
        self.ended: set[int] = set()
        for trainer in range(TRAINERS):
            self.recover(trainer)

    def recover(self, trainer: int) -> None:
        used = self.positions.count_used(trainer)
        index = self.positions.skips[trainer] + used
        self.iterators[trainer] = Iterator(index, self.positions.first_number + used)

    def lose(self, trainer: int, lives_on: bool) -> None:
        """Lose a worker. Its call is given to another one; cut off, it executes it as well."""
        call = self.calls[trainer]
        self.iterators[trainer] = self.calls[trainer] = None
        if call is not None:
            self.waiting.append(call.steps)
            self.halves += bool(call.store)
            if lives_on:
                self.stray.append(replace(call))

    def interrupt(self, trainer: int) -> None:
        """Lose a connection of a worker: another one makes its call, and it reads its data anew."""
        if self.calls[trainer] is not None:
            self.lose(trainer, lives_on=False)
            self.recover(trainer)

    def hear(self) -> None:
        """Let the chief learn of a call."""
        self.positions.note_used(*self.answers.pop(0))

    def move(self, call: Call) -> bool:
        """Apply an update to one more server; return whether the call is over."""
        iterator = call.iterator
        if call.done == call.steps or iterator.index == BATCHES:
            return True
        batch = (call.trainer, call.passes, iterator.index)
        self.servers[call.store].apply(batch, iterator.number)
        call.store += 1
        if call.store == STORES:
            call.store = 0
            call.done += 1
            iterator.index, iterator.number = iterator.index + 1, iterator.number + 1
        return False

    def dispatch(self) -> None:
        free = [
            trainer
            for trainer in range(TRAINERS)
            if self.calls[trainer] is None and self.iterators[trainer] is not None
        ]
        if not free:
            return
        trainer = self.chance.choice(free)
        iterator = self.iterators[trainer]
        assert iterator is not None
        steps = self.waiting.pop() if self.waiting else self.chance.randint(1, 3)
        self.calls[trainer] = Call(steps, iterator, trainer, self.positions.passes)

    def work(self) -> None:
        """Let a worker that is drawn go on with its call."""
        running = [call for call in self.calls if call is not None]
        if not running:
            return
        call = self.chance.choice(running)
        if self.move(call):
            self.calls[call.trainer] = None
            # The chief learns of some calls late.
            self.answers.append((call.trainer, call.iterator.number if call.done else 0))
            if call.done < call.steps:
                self.ended.add(call.trainer)

    def save(self) -> None:
        if any(self.calls) or self.waiting:
            return
        each = [server.expected for server in self.servers]
        expected = [max(numbers) for numbers in zip(*each, strict=True)]
        self.saved = (
            [Counter(server.applied) for server in self.servers],
            self.positions.save(expected),
        )

    def run(self) -> None:
        for _ in range(100_000):
            draw = self.chance.random()
            trainer = self.chance.randrange(TRAINERS)
            if self.positions.passes == PASSES:
                return
            if draw < 0.04:
                self.lose(trainer, lives_on=draw < 0.02)
            elif draw < 0.05:
                self.start()
            elif draw < 0.07:
                self.interrupt(trainer)
            elif draw < 0.10:
                self.save()
            elif draw < 0.20 and self.iterators[trainer] is None:
                self.recover(trainer)
            elif draw < 0.40 and self.stray:
                call = self.chance.choice(self.stray)
                if self.move(call):
                    self.stray.remove(call)
            elif draw < 0.60:
                self.dispatch()
            elif draw < 0.70 and self.answers:
                self.hear()
            else:
                self.work()
            if len(self.ended) == TRAINERS and not any(self.calls):
                while self.answers:
                    self.hear()
                self.positions.rewind()
                self.open()
        raise AssertionError("the run does not end")


@pytest.mark.parametrize("block", range(4))
def test_each_batch_is_applied_once_on_each_server(block: int) -> None:
    for seed in range(block * 250, (block + 1) * 250):
        history = History(seed)
        history.run()
        wanted = {
            (trainer, number, index)
            for trainer in range(TRAINERS)
            for number in range(PASSES)
            for index in range(BATCHES)
        }
        halves = 0
        for server in history.servers:
            assert max(server.applied.values()) == 1, f"seed {seed}: applied twice"
            halves += len(wanted - server.applied.keys())
        everywhere = set().union(*(server.applied for server in history.servers))
        assert everywhere == wanted, f"seed {seed}: left out"
        # An update may be lost on one server if its worker was lost between the two.
        assert halves <= history.halves, f"seed {seed}: {halves} halves of updates are missing"


def test_positions_of_another_number_of_trainers_are_shared_evenly() -> None:
    positions = ShardPositions(2)
    positions.restore(1, 11, (0, 5, 3, 3))
    assert (positions.passes, positions.skips) == (1, (5, 5))
    positions.restore(1, 11, (2, 5, 3))
    assert (positions.passes, positions.skips) == (2, (5, 3))


def test_a_data_service_gives_a_trainer_that_was_lost_other_batches() -> None:
    positions = ShardPositions(2, is_served=True)
    positions.open()
    numbers = set()
    for calls in ((1, 2), (), (3,)):
        begin = positions.first_number + positions.count_used(1)
        assert begin not in numbers
        numbers |= {begin, *(begin + call for call in calls)}
        for call in calls:
            positions.note_used(1, begin + call)
    assert positions.save([0, 5]) == ()
