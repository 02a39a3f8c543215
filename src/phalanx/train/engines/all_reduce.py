"""The same program on every replica: one process, several devices, or many hosts in step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError, Interrupted
from phalanx.train.context import Context
from phalanx.train.engines.base import Progress
from phalanx.train.engines.reduction import Reduction
from phalanx.train.engines.steps_per_call import StepsPerCall
from phalanx.train.loop.evaluation import EvaluationLoop
from phalanx.train.runtime.task_data import TaskData
from phalanx.train.step.accumulation import scale_gradient
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.flat_layout import Tensor
from phalanx.train.variables.host_variables import HostVariables

# The report, the gradients of what is read whole, the state; and of what is looked up, the numbers
# of rows and their gradients.
Sums = tuple[Tensor, list[Tensor], list[Tensor], list[tuple[Tensor, Tensor]]]


class Command(IntEnum):
    """What the chief tells the others to do next."""

    END = 0
    TRAIN = 1
    REWIND = 2
    EVALUATE = 3


class AllReduceEngine:
    """Runs replicas in step: each takes its batch, their gradients are summed, all apply the sum.

    With many hosts there is one leader, the chief. Before each call all tasks agree on what it
    says, so that only the chief decides: the others `follow`.
    """

    def __init__(
        self,
        step: StepFunction,
        host_variables: HostVariables,
        strategy: Any,
        context: Context,
        feed: TaskData,
        *,
        devices: Sequence[str],
        on_host: bool = False,
        limits: dict[str, float | None],
        is_many: bool = False,
        is_leader: bool = True,
        accumulate: int = 1,
        xla: bool = False,
        steps_per_call: int | None = None,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._step = step
        self._context = context
        self._feed = feed
        self._devices = devices
        homes = ["/device:CPU:0"] if on_host else devices
        self._copies = [DeviceVariables.place(host_variables, [device], limits) for device in homes]
        self.weights = self._copies[0]
        self._reduction = Reduction(strategy, context.num_shards)
        self._is_many = is_many
        self._is_leader = is_leader
        self._accumulate = accumulate
        self._steps_per_call = StepsPerCall(fixed=steps_per_call)
        self._is_asked_to_stop = is_asked_to_stop
        self._interrupted = False
        self._seen = False
        self._iterator: Any = None
        compute = step.train
        self._compute = tf.function(compute, jit_compile=True) if xla else compute
        self._train_function = tf.function(self._train_many, reduce_retracing=True)
        self._evaluation_loop = EvaluationLoop(step, self._copies, devices, self._reduction)
        self._agree_function = tf.function(self._reduction.sum_of_hosts)

    def begin(self, step: int, skip: int) -> None:
        """Give every copy the chief's values."""
        if self._is_many:
            self._broadcast_host_variables()
        for copy in self._copies:
            copy.push()
        _, skip, _ = self._agree(Command.REWIND, skip)
        self._seen = skip > 0
        self._iterator = self._feed.open(skip * self._reduction.local * self._accumulate)

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """Run steps in one call, as many as fit the pace."""
        steps = max(0, min(self._steps_per_call.steps, due - step, limit - step))
        _, steps, step = self._agree(Command.TRAIN, steps, step)
        return self._advance(step, steps)

    def _advance(self, step: int, steps: int) -> Progress:
        started = time.perf_counter()
        done, report, ended, seen = self._train_function(
            self._iterator, tf.constant(steps), tf.constant(step, tf.int64)
        )
        progress = Progress(int(done), report.numpy().astype(np.float64), bool(ended))
        if not self._seen and steps and not int(seen):
            raise DataError(
                f"train_data gave no batch for shard {self._context.shard} of "
                f"{self._context.num_shards}: the data is empty, or has fewer files than there are "
                "workers; shard by examples, or start fewer workers"
            )
        self._seen = True
        self._steps_per_call.record(progress.steps, time.perf_counter() - started)
        return progress

    def rewind(self) -> None:
        """Read the data again."""
        self._agree(Command.REWIND)
        self._iterator = self._feed.open(0)

    def settle(self) -> None:
        """Nothing is ever under way."""

    def pull(self) -> None:
        """All copies are equal: take the first."""
        self.weights.pull()

    def evaluate(self, limit: int | None, notify: Callable[[int], None]) -> Any:
        """Every replica evaluates its share; what they report is summed."""
        _, limit, _ = self._agree(Command.EVALUATE, limit or 2**31 - 1)
        return self._evaluate(limit, notify)

    def _evaluate(self, limit: int, notify: Callable[[int], None]) -> Any:
        return self._evaluation_loop.evaluate(self._feed.open_evaluation(), limit, notify)

    def is_interrupted(self) -> bool:
        """Whether any task was asked to stop when all last agreed."""
        return self._interrupted

    def finish(self, error: BaseException | None) -> None:
        """Let the others go. After an error they are told by message: they may be anywhere."""
        if error is None or isinstance(error, Interrupted):
            self._agree(Command.END)
        self.close_data()

    def follow(self) -> None:
        """Do what the leader says until it says that the run is over."""
        while True:
            command, steps, step = self._agree(Command.END)
            if command == Command.END:
                return
            if command == Command.TRAIN:
                self._advance(step, steps)
            elif command == Command.REWIND:
                self._iterator = self._feed.open(0)
            else:
                self._evaluate(steps, lambda batches: None)

    def close_data(self) -> None:
        """A dataset that is read by Python must be closed while Python is there."""
        self._iterator = None

    def _agree(self, command: Command, steps: int = 0, step: int = 0) -> tuple[int, int, int]:
        if not self._is_many:
            return command, steps, step
        said = [int(command), steps, step] if self._is_leader else [0, 0, 0]
        vote = tf.constant([*said, int(self._is_asked_to_stop())], tf.int64)
        agreed = [int(number) for number in self._agree_function(vote)]
        self._interrupted = agreed[3] > 0
        return agreed[0], agreed[1], agreed[2]

    def _broadcast_host_variables(self) -> None:
        """Give every host the leader's initial or restored values."""
        host_variables = self.weights.host_variables
        variables = [
            *host_variables.trainable,
            *host_variables.state,
            *host_variables.slots.others,
            *(slot for slots in host_variables.slots.by_weight.values() for slot in slots.values()),
        ]

        def share() -> list[Tensor]:
            return [
                self._reduction.sum_of_hosts(
                    v.value if self._is_leader else tf.zeros(v.shape, v.dtype)
                )
                for v in variables
            ]

        for variable, value in zip(variables, tf.function(share)(), strict=True):
            variable.assign(value.numpy())

    def _train_many(self, iterator: Any, steps: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        done = tf.constant(0)
        seen = tf.constant(0)
        report = tf.zeros([self._step.report_size])
        more = tf.constant(True)
        while more and done < steps:
            if self._reduction.replicas == 1 and self._accumulate == 1:
                optional = iterator.get_next_as_optional()
                more = optional.has_value()
                if more:
                    copy = self._copies[0]
                    gradients, state, one = self._compute(
                        copy, copy.read(), copy.read_state(), optional.get_value(), 0, step
                    )
                    copy.apply(gradients)
                    copy.write_state(copy.state_packing.join(state))
                    report += one
                    done += 1
                    seen += 1
                    step += 1
            else:
                totals, has = self._train_one(iterator, step)
                seen += has
                count = totals[0][0][0]
                more = count > 0
                if more:
                    for copy, (_, gradients, state, rows) in zip(self._copies, totals, strict=True):
                        with tf.device(copy.stores[0].device):
                            copy.apply(
                                [
                                    scale_gradient(gradient, 1 / count)
                                    for gradient in _in_order(copy, gradients, rows)
                                ]
                            )
                            copy.write_state(
                                [
                                    tf.cast(tf.cast(value, tf.float32) / count, value.dtype)
                                    if value.dtype.is_floating
                                    else value
                                    for value in state
                                ]
                            )
                    report += totals[0][0]
                    done += 1
                    step += 1
        return done, report, tf.logical_not(more), seen

    def _train_one(self, iterator: Any, step: Tensor) -> tuple[list[Any], Tensor]:
        """One update's worth on every replica: for each copy the sums over all replicas."""
        everything, seen = [], []
        for index in range(self._reduction.local):
            with tf.device(self._devices[index % len(self._devices)]):
                sums, has = self._train_replica(index, iterator, step)
                everything.append(sums)
                seen.append(has)
        return self._sum_over_replicas(everything)[: len(self._copies)], tf.add_n(seen)

    def _train_replica(self, index: int, iterator: Any, step: Tensor) -> tuple[Sums, Tensor]:
        """The sums of one replica's batches: of the report, the gradients and the state."""
        replica = self._context.shard * self._reduction.local + index
        copy = self._copies[index % len(self._copies)]
        pieces, state = copy.read(), copy.read_state()
        sums = self._nothing(copy, state)
        seen = tf.constant(0)
        for part in range(self._accumulate):
            optional = iterator.get_next_as_optional()
            has = optional.has_value()
            salt = replica + part * self._reduction.replicas
            one = tf.cond(
                has,
                lambda optional=optional, salt=salt: self._weigh(
                    copy, pieces, state, optional.get_value(), salt, step
                ),
                lambda: self._nothing(copy, state),
            )
            added = tf.nest.map_structure(
                lambda total, more: total + more if total.dtype.is_floating else more,
                sums[:3],
                one[:3],
            )
            rows = tf.nest.map_structure(
                lambda before, more: tf.concat([before, more], 0), sums[3], one[3]
            )
            sums = (*added, rows)
            seen += tf.cast(has, tf.int32)
        return sums, seen

    def _weigh(
        self, copy: DeviceVariables, pieces: Any, state: Any, batch: Any, replica: Any, step: Tensor
    ) -> Sums:
        """A batch's gradients and state, times its number of examples."""
        gradients, new_state, report = self._compute(copy, pieces, state, batch, replica, step)
        count = report[0]
        packed = copy.state_packing.join(new_state)
        tables = copy.table_pieces()
        scaled = [scale_gradient(gradient, count) for gradient in gradients]
        return (
            report,
            [tf.convert_to_tensor(g) for number, g in enumerate(scaled) if number not in tables],
            [
                scale_gradient(value, count) if value.dtype.is_floating else value
                for value in packed
            ],
            [(scaled[number].indices, scaled[number].values) for number in tables],
        )

    def _nothing(self, copy: DeviceVariables, state: Any) -> Sums:
        tables = copy.table_pieces()
        pieces = copy.packing.pieces
        return (
            tf.zeros([self._step.report_size]),
            [tf.zeros(p.shape, p.dtype) for number, p in enumerate(pieces) if number not in tables],
            [
                tf.zeros(piece.shape, piece.dtype) if tf.as_dtype(piece.dtype).is_floating else old
                for piece, old in zip(copy.state_packing.pieces, state, strict=True)
            ],
            [
                (tf.zeros([0], tf.int64), tf.zeros([0, *pieces[n].shape[1:]], pieces[n].dtype))
                for n in tables
            ],
        )

    def _sum_over_replicas(self, everything: list[Sums]) -> list[Sums]:
        """One transfer for all that is summed; of a table, the gradients of all rows."""
        if self._reduction.replicas == 1:
            return everything
        tables = [self.weights.packing.pieces[n].shape for n in self.weights.table_pieces()]
        spread = [
            (*sums[:3], [_spread(*rows, s[0]) for rows, s in zip(sums[3], tables, strict=True)])
            for sums in everything
        ]
        flats = []
        for sums in spread:
            summed = [tensor for tensor in tf.nest.flatten(sums) if tensor.dtype.is_floating]
            wide = tf.float64 if any(t.dtype == tf.float64 for t in summed) else tf.float32
            flats.append(
                tf.concat([tf.reshape(tf.cast(tensor, wide), [-1]) for tensor in summed], 0)
            )
        split = [
            _split_like(whole, sums)
            for whole, sums in zip(self._reduction.sum(flats), spread, strict=True)
        ]
        return [(*sums[:3], [_collect(*rows) for rows in sums[3]]) for sums in split]


def _spread(numbers: Tensor, values: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Gradients of some rows as those of all, and which were looked up."""
    ones = tf.ones_like(numbers, values.dtype)
    return (
        tf.math.unsorted_segment_sum(values, numbers, rows),
        tf.math.unsorted_segment_sum(ones, numbers, rows),
    )


def _collect(values: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """And back."""
    numbers = tf.where(times > 0)[:, 0]
    return numbers, tf.gather(values, numbers)


def _in_order(
    copy: DeviceVariables, gradients: list[Tensor], rows: list[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """Every piece's gradient, in the order of the pieces."""
    left, tables = iter(gradients), dict(zip(copy.table_pieces(), rows, strict=True))
    return [
        tf.IndexedSlices(tables[n][1], tables[n][0], tf.constant(piece.shape, tf.int64))
        if n in tables
        else next(left)
        for n, piece in enumerate(copy.packing.pieces)
    ]


def _split_like(whole: Tensor, sums: Sums) -> Sums:
    """Undo the laying end to end; what is not summed, such as counters, stays as it is."""
    tensors = tf.nest.flatten(sums)
    sizes = [t.shape.num_elements() for t in tensors if t.dtype.is_floating]
    parts = iter(tf.split(whole, sizes))
    split = [
        tf.cast(tf.reshape(next(parts), tensor.shape), tensor.dtype)
        if tensor.dtype.is_floating
        else tensor
        for tensor in tensors
    ]
    return tf.nest.pack_sequence_as(sums, split)  # type: ignore[no-any-return]
