"""What both engines on parameter servers share: the connection, the data, the evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from phalanx.cluster import Task
from phalanx.train.config import RunConfig
from phalanx.train.context import Context
from phalanx.train.examiner import Examiner
from phalanx.train.experiment import Experiment
from phalanx.train.feed import make_eval_data, make_train_data
from phalanx.train.mailbox import Mailbox, Message, Word
from phalanx.train.step import Step
from phalanx.train.strategy import Formation, ps_jobs
from phalanx.train.weights import Master, Weights


class Servers:
    """A chief's view of its parameter servers and workers."""

    def __init__(
        self, formation: Formation, config: RunConfig, experiment: Experiment, mailbox: Mailbox
    ) -> None:
        self.formation = formation
        self.config = config
        self.experiment = experiment
        self.mailbox = mailbox
        self.coordinator: Any = None
        self.trainers: tuple[Task, ...] = formation.trainers
        self._examiner: Examiner | None = None
        self._local: Weights | None = None

    def connect(self) -> None:
        """Take possession of the cluster."""
        jobs = ps_jobs(self.formation.cluster)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.devices = [
            f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(len(jobs["ps"]))
        ]

    @property
    def chief_trains(self) -> bool:
        """Whether the first trainer is this process."""
        return self.trainers[0] == self.formation.task

    @property
    def contexts(self) -> list[Context]:
        """What each trainer reads."""
        return [self.formation.share(self.config, task) for task in self.trainers]

    @property
    def eval_context(self) -> Context:
        """The chief evaluates alone: it reads everything."""
        size = self.config.global_batch_size
        return Context(batch_size=size, global_batch_size=size, seed=self.config.seed)

    def open_remote(self, skip: int, passes: int | None) -> Any:
        """An iterator on every worker, over its own share."""
        contexts = self.contexts[1:] if self.chief_trains else self.contexts

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def make() -> Any:
            index = tf.distribute.coordinator.experimental_get_current_worker_index()
            shares = [
                lambda context=context: self._make(context, skip, passes) for context in contexts
            ]
            return tf.switch_case(tf.cast(index, tf.int32), shares)

        return iter(self.coordinator.create_per_worker_dataset(make))

    def open_local(self, skip: int, passes: int | None) -> Any:
        """An iterator over the chief's own share."""
        return iter(self._make(self.contexts[0], skip, passes))

    def _make(self, context: Context, skip: int, passes: int | None) -> Any:
        data = make_train_data(self.experiment, context)
        if passes != 1:
            data = data.repeat(passes)
        return data.skip(skip) if skip else data

    def evaluate(
        self, step: Step, master: Master, limit: int | None, notify: Callable[[int], None]
    ) -> Any:
        """Evaluate the master's values, on the chief alone."""
        if self._local is None or self._examiner is None:
            here = ["/job:chief/replica:0/task:0/device:CPU:0"]
            self._local = Weights.place(master, here, {})
            self._examiner = Examiner(step, [self._local], here)
        self._local.push()
        data = make_eval_data(self.experiment, self.eval_context)
        return self._examiner.examine(iter(data), limit, notify)

    def is_interrupted(self) -> bool:
        """Whether a worker or parameter server was asked to end."""
        message = self.mailbox.wait(0)
        return message is not None and message.word is Word.TERMINATED

    def find_failure(self) -> Message | None:
        """What a task that failed has said."""
        message = self.mailbox.wait(0)
        return message if message is not None and message.word is Word.FAILED else None


def shard_names(trainers: Sequence[Task]) -> str:
    """For messages."""
    return ", ".join(str(task) for task in trainers)
