"""Made-up histories of workers that are lost and come back, against the chief's real rules.

The coordinator of TensorFlow, the workers and the clock are made up; everything that happens is
drawn by a seed, which a failure names.
"""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from phalanx.train.runtime import worker_recovery
from phalanx.train.runtime.worker_recovery import WorkerRecovery

WORKERS = 4
MOST_SLEEPS = 2_000


class Worker:
    """A worker of the coordinator."""

    def __init__(self, number: int, history: History) -> None:
        self.number, self.history = number, history
        self._is_dead_with_error: Any = None

    def _on_worker_recovery(self) -> None:
        self.history.note_recovery(self)

    def _process_closure(self, call: str) -> None:
        if call == "loses a connection":
            self.history.queue.put_back(call)


class Queue:
    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def put_back(self, call: Any) -> None:
        self.waiting.append(call)


class Cluster:
    """What the coordinator knows of its workers."""

    def __init__(self, history: History) -> None:
        self.workers, self.closure_queue = history.workers, history.queue
        self.failure_handler = SimpleNamespace(_cluster_due_for_update_or_finish=history.due)

    def _record_and_ignore_transient_ps_failure(self, error: Exception) -> bool:
        return False


class Context:
    """Knows which workers are in the cluster, as TensorFlow does after an update."""

    def __init__(self) -> None:
        self.present = set(range(WORKERS))

    def update_server_def(self, server_def: Any) -> None:
        [job] = server_def.cluster.job
        self.present = set(job.tasks)


class History:
    """Kills and starts workers while the chief sleeps."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.listening = set(range(WORKERS))
        self.prepared: list[int] = []
        self.sleeps = self.updates_alone = 0
        self.is_updating = False
        self.workers = [Worker(number, self) for number in range(WORKERS)]
        self.queue = Queue()
        self.due = threading.Event()
        self.context = Context()
        monkeypatch.setattr(eager_context, "context", lambda: self.context)
        monkeypatch.setattr(worker_recovery, "is_listening", self.is_listening)
        monkeypatch.setattr(worker_recovery, "time", SimpleNamespace(sleep=self.sleep))
        coordinator = SimpleNamespace(_cluster=Cluster(self))
        self.recovery = WorkerRecovery(coordinator, list(map(str, range(WORKERS))), [])
        self.recovery.prepare_data(self.prepared.append)
        self.server_def = tf.train.ServerDef()
        job = self.server_def.cluster.job.add(name="worker")
        for number in range(WORKERS):
            job.tasks[number] = str(number)

    def is_listening(self, address: str) -> bool:
        return int(address) in self.listening

    def lose(self, number: int) -> None:
        self.listening.discard(number)
        self.workers[number]._is_dead_with_error = "lost"

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        assert self.sleeps < MOST_SLEEPS, "the chief waits for ever"
        number = self.chance.randrange(WORKERS)
        if self.chance.random() < 0.1:
            self.lose(number)
        elif self.chance.random() < 0.3:
            self.listening.add(number)
        if self.due.is_set() and not self.is_updating:
            self.update()

    def update(self) -> None:
        """Let the coordinator connect again, as it does in a thread of its own."""
        self.is_updating = True
        self.context.update_server_def(self.server_def)
        self.is_updating = False
        self.due.clear()
        assert self.context.present == self.listening
        self.updates_alone += len(self.listening) < WORKERS

    def note_recovery(self, worker: Worker) -> None:
        assert worker.number in self.context.present
        assert self.prepared[-1] == worker.number
        worker._is_dead_with_error = None

    def run(self) -> None:
        for _ in range(30):
            self.lose(self.chance.randrange(WORKERS))
            self.update()
            # The coordinator believes that all are back.
            for worker in self.workers:
                if worker._is_dead_with_error:
                    worker._on_worker_recovery()


def test_each_lost_worker_is_taken_back_as_soon_as_it_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = 0
    for seed in range(300):
        with monkeypatch.context() as patch:
            history = History(seed, patch)
            try:
                history.run()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            alone += history.updates_alone
    assert alone > 1000


def test_a_worker_that_has_lost_a_connection_opens_its_data_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(0, monkeypatch)
    process: Any = history.workers[2]._process_closure
    process("works")
    assert history.prepared == []
    process("loses a connection")
    assert (history.prepared, history.queue.waiting) == ([2], ["loses a connection"])
