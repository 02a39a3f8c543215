"""Synchronous training by all-reduce: on one device, on several, or on many hosts."""

import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import reduce

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError, Interrupted
from phalanx.train.context import Context
from phalanx.train.engines.base import Notify, Progress, TrainingEngine
from phalanx.train.engines.communication import Communication
from phalanx.train.engines.in_place import InPlaceTraining
from phalanx.train.engines.reduction import Reduction
from phalanx.train.engines.steps_per_call import StepsPerCall
from phalanx.train.loop.evaluation import EvaluationLoop, count_batches
from phalanx.train.runtime.task_data import TaskData
from phalanx.train.step.accumulation import (
    Compute,
    add_contributions,
    average,
    has_examples,
    weight_by_examples,
    zero_contribution,
)
from phalanx.train.step.step_function import StepFunction, StepResult
from phalanx.train.step.step_times import StepTimes, read_clock
from phalanx.train.types import Array, Dataset, DatasetIterator, Tensor, TFStrategy
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.host_variables import HostVariables

_NO_LIMIT = 2**31 - 1


class Command(IntEnum):
    """What all tasks do next. The chief decides."""

    END = 0
    TRAIN = 1
    REWIND = 2
    EVALUATE = 3
    SET_LEARNING_RATE = 4
    FINALIZE = 5
    PUSH = 6


class AllReduceEngine(TrainingEngine):
    """Runs the same step on every replica, sums the gradients, and applies the sum on each.

    With many hosts, the chief decides: before each call all tasks agree on its command, and the
    tasks that are not the chief `follow` it.
    """

    def __init__(
        self,
        step: StepFunction,
        host_variables: HostVariables,
        tf_strategy: TFStrategy,
        context: Context,
        data: TaskData,
        *,
        devices: Sequence[str],
        clipping: Clipping,
        communication: Communication | None = None,
        on_host: bool = False,
        is_chief: bool = True,
        task: str = "chief-0",
        accumulate: int = 1,
        xla: bool = False,
        steps_per_call: int | None = None,
        eval_steps: int | None = None,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._step = step
        self._context = context
        self._data = data
        self._devices = devices
        communication = communication or Communication()
        self._reduction = Reduction(tf_strategy, context.num_shards, context.shard, communication)
        pack_bytes = communication.bytes_per_pack if self._reduction.replicas > 1 else None
        self._copies = [
            DeviceVariables.place(
                host_variables, [device], clipping, is_copy=number > 0, pack_bytes=pack_bytes
            )
            for number, device in enumerate(["/device:CPU:0"] if on_host else devices)
        ]
        self.variables: DeviceVariables = self._copies[0]
        self._has_peers = context.num_shards > 1
        self.can_abandon_evaluation = not self._has_peers
        self._is_chief = is_chief
        self._task = task
        self._times = StepTimes()
        self._accumulate = accumulate
        if self._reduction.replicas > 1 and self.variables.sparse_gradients():
            # In one call of a function, TensorFlow gathers only matrices of the same shape, and
            # each step looks up another number of rows.
            steps_per_call = 1
        self._steps_per_call = StepsPerCall(fixed=steps_per_call)
        self._eval_steps = eval_steps or _NO_LIMIT
        self._is_asked_to_stop = is_asked_to_stop
        self._interrupted = False
        self._has_data = False
        self.next_step = 0
        """The number of the step after the last one that this task has taken part in."""
        self._iterator: DatasetIterator = None
        self._in_place = InPlaceTraining(step, self._copies, devices, self._reduction)
        self._compute: Compute = tf.function(step.train, jit_compile=True) if xla else step.train
        self._train_function = tf.function(self._train_many, reduce_retracing=True)
        self._evaluation_loop = EvaluationLoop(step, self._copies, devices, self._reduction)
        self._agree_function = tf.function(self._reduction.sum_of_hosts)

    def begin(self, step: int, skip: int, passes: int = 0, shards: Sequence[int] = ()) -> None:
        """Copy the chief's variables to every replica, and open the data."""
        self._push()
        _, skip, passes = self._agree(Command.REWIND, skip, passes)
        self._has_data = skip > 0
        self._data = self._data.continue_after(passes)
        self._iterator = self._data.open(skip * self._reduction.local * self._accumulate)

    def advance(self, step: int, due: int, limit: int) -> Progress:
        steps = max(0, min(self._steps_per_call.steps, due - step, limit - step))
        _, steps, step = self._agree(Command.TRAIN, steps, step)
        return self._advance(step, steps)

    def _advance(self, step: int, steps: int) -> Progress:
        started = time.perf_counter()
        done, report, ended, batches, waited = self._train_function(
            self._iterator, tf.constant(steps), tf.constant(step, tf.int64)
        )
        seconds = time.perf_counter() - started
        self._times += StepTimes.split(seconds, *map(float, waited))
        progress = Progress(int(done), report.numpy().astype(np.float64), bool(ended))
        if not self._has_data and steps and not int(batches):
            shards = self._context.num_shards
            if shards == 1:
                raise DataError("the training data has no batch: check its paths and filters")
            raise DataError(
                f"train_data gave no batch for shard {self._context.shard} of {shards}: the data "
                "is empty, or has fewer files than there are workers; shard by examples, or start "
                "fewer workers"
            )
        self._has_data = True
        self.next_step = step + progress.steps
        self._steps_per_call.record(progress.steps, seconds)
        return progress

    def rewind(self) -> None:
        self._agree(Command.REWIND)
        self._iterator = self._data.open(0)

    def pull(self) -> None:
        """Copy the first replica's variables; all replicas are equal."""
        self.variables.pull()

    def push(self) -> None:
        self._agree(Command.PUSH)
        self._push()

    def _push(self) -> None:
        if self._has_peers:
            self._broadcast_host_variables()
        for copy in self._copies:
            copy.push()

    def count_evaluation_batches(self, data: Dataset) -> int | None:
        limit = None if self._eval_steps == _NO_LIMIT else self._eval_steps
        return count_batches(data, limit, self._reduction.local)

    def evaluate(self, notify: Notify, batches_per_call: int | None = None) -> Array:
        """Evaluate one shard on each replica, and sum the reports."""
        agreed = self._agree(Command.EVALUATE, self._eval_steps, batches_per_call or 0)
        return self._evaluate(*agreed[1:], notify)

    def _evaluate(self, limit: int, batches_per_call: int, notify: Notify) -> Array:
        data = self._data.open_evaluation()
        return self._evaluation_loop.evaluate(data, limit, notify, batches_per_call or None)

    def set_learning_rate(self, value: float) -> None:
        # This one raises if the learning rate is a schedule, before the other tasks are told.
        self.variables.host_variables.optimizer.learning_rate = value
        self._agree(Command.SET_LEARNING_RATE, _float_to_bits(value))
        self._set_learning_rate(value)

    def _set_learning_rate(self, value: float) -> None:
        for copy in self._copies:
            copy.set_learning_rate(value)

    def finalize(self) -> bool:
        self._agree(Command.FINALIZE)
        return self._finalize()

    def _finalize(self) -> bool:
        changed = [copy.finalize() for copy in self._copies]
        return any(changed)

    def is_interrupted(self) -> bool:
        """Whether any task had received SIGTERM when all last agreed."""
        return self._interrupted

    def step_times(self) -> Mapping[str, StepTimes]:
        """Return the times of this task; the other tasks know theirs."""
        return {self._task: self._times}

    def finish(self, error: BaseException | None) -> None:
        """Tell the other tasks to end; after an error, the control channel tells them."""
        if error is None or isinstance(error, Interrupted):
            self._agree(Command.END)
        self.close_data()

    def follow(self, on_step: Callable[[int, StepTimes], None]) -> None:
        """Run the chief's commands until it ends the run.

        After each group of steps, call `on_step` with the number of steps, and what this task has
        spent its time on so far.
        """
        while True:
            command, steps, step = self._agree(Command.END)
            if command == Command.END:
                return
            if command == Command.TRAIN:
                self._advance(step, steps)
                on_step(self.next_step, self._times)
            elif command == Command.REWIND:
                self._iterator = self._data.open(0)
            elif command == Command.SET_LEARNING_RATE:
                self._set_learning_rate(_bits_to_float(steps))
            elif command == Command.FINALIZE:
                self._finalize()
            elif command == Command.PUSH:
                self._push()
            else:
                self._evaluate(steps, step, lambda batches, report: None)

    def close_data(self) -> None:
        """Release the iterator: a dataset that runs Python must be closed before Python ends."""
        self._iterator = None

    def _agree(self, command: Command, steps: int = 0, step: int = 0) -> tuple[int, int, int]:
        """Return the chief's arguments in every task, and note whether any task must stop."""
        if not self._has_peers:
            return command, steps, step
        decision = [int(command), steps, step] if self._is_chief else [0, 0, 0]
        vote = tf.constant([*decision, int(self._is_asked_to_stop())], tf.int64)
        started = time.perf_counter()
        agreed = [int(number) for number in self._agree_function(vote)]
        self._times += StepTimes(peers=time.perf_counter() - started)
        self._interrupted = agreed[3] > 0
        return agreed[0], agreed[1], agreed[2]

    def _broadcast_host_variables(self) -> None:
        """Give every host the chief's values."""
        variables = self.variables.host_variables.all()
        # TensorFlow would warn of one trace for each engine in a program.
        broadcast = tf.function(self._broadcast).get_concrete_function()
        for variable, value in zip(variables, broadcast(), strict=True):
            variable.assign(value.numpy())

    def _broadcast(self) -> list[Tensor]:
        return [
            self._reduction.sum_of_hosts(v.value if self._is_chief else tf.zeros(v.shape, v.dtype))
            for v in self.variables.host_variables.all()
        ]

    def _train_many(
        self, iterator: DatasetIterator, steps: Tensor, step: Tensor
    ) -> tuple[Tensor, ...]:
        """Run steps.

        Returns how many, their report, whether the data ended, how many batches this task has
        read, and the seconds that it has waited for them and for its peers.
        """
        done = tf.constant(0)
        batches = tf.constant(0)
        report = tf.zeros([self._step.report_size])
        more = tf.constant(True)
        now = read_clock()
        waited, peers = tf.zeros_like(now), tf.zeros_like(now)
        while more and done < steps:
            if self._step.updates_in_place:
                summed, new_batches, data_wait, peer_wait = self._in_place.train(
                    iterator, step, now
                )
                waited += data_wait
                peers += peer_wait
                now = read_clock(now, summed)
                more = summed[0] > 0
                report += summed
                done += tf.cast(more, tf.int32)
                batches += new_batches
                step += 1
            elif self._reduction.replicas == 1 and self._accumulate == 1:
                optional = iterator.get_next_as_optional()
                more = optional.has_value()
                waited += read_clock(now, more) - now
                if more:
                    copy = self._copies[0]
                    result = self._compute(
                        copy, copy.read(), copy.read_state(), optional.get_value(), 0, step
                    )
                    now = read_clock(now, more, result.gradients, result.report)
                    copy.apply(result.gradients)
                    copy.write_changing_state(result.state)
                    copy.grow(result.sightings)
                    report += result.report
                    done += 1
                    batches += 1
                    step += 1
            else:
                totals, new_batches, data_wait, peer_wait = self._sum_one_update(
                    iterator, step, now
                )
                waited += data_wait
                peers += peer_wait
                now = read_clock(now, totals[0].gradients, totals[0].report)
                batches += new_batches
                more = totals[0].report[0] > 0
                if more:
                    for copy, total in zip(self._copies, totals, strict=True):
                        with tf.device(copy.stores[0].device):
                            mean = average(total)
                            copy.apply(mean.gradients)
                            copy.write_changing_state(mean.state)
                            copy.grow(mean.sightings)
                    report += totals[0].report
                    done += 1
                    step += 1
        return done, report, tf.logical_not(more), batches, tf.stack([waited, peers])

    def _sum_one_update(
        self, iterator: DatasetIterator, step: Tensor, begun: Tensor
    ) -> tuple[list[StepResult], Tensor, Tensor, Tensor]:
        """Return the sum over all replicas for each copy, the local batches, and both waits."""
        contributions, batches, waits = [], [], []
        for index in range(self._reduction.local):
            with tf.device(self._devices[index % len(self._devices)]):
                contribution, count, waited = self._contribute(index, iterator, step, begun)
                contributions.append(contribution)
                batches.append(count)
                waits.append(waited)
        totals = self._reduction.sum_contributions(contributions, self.variables.layout.buffers)
        peer_wait = tf.zeros_like(begun)
        if self._has_peers:
            computed = read_clock([(each.gradients, each.report) for each in contributions])
            summed = read_clock(computed, totals[0].gradients, totals[0].report)
            peer_wait = summed - computed
        return totals[: len(self._copies)], tf.add_n(batches), tf.reduce_max(waits), peer_wait

    def _contribute(
        self, index: int, iterator: DatasetIterator, step: Tensor, begun: Tensor
    ) -> tuple[StepResult, Tensor, Tensor]:
        """Return the sum of one replica's batches, how many there were, and the wait for them."""
        replica = self._reduction.replica(index)
        copy = self._copies[index % len(self._copies)]
        buffers, state = copy.read(), copy.read_state()
        contributions = []
        batches = tf.constant(0)
        waited = tf.constant(0, tf.float64)
        for part in range(self._accumulate):
            optional = iterator.get_next_as_optional()
            waited += read_clock(begun, optional.has_value()) - begun
            seed = replica + part * self._reduction.replicas
            contributions.append(
                tf.cond(
                    has_examples(optional),
                    lambda optional=optional, seed=seed: weight_by_examples(
                        self._compute(copy, buffers, state, optional.get_value(), seed, step), copy
                    ),
                    lambda: zero_contribution(
                        copy, copy.select_changing(state), self._step.report_size
                    ),
                )
            )
            batches += tf.cast(optional.has_value(), tf.int32)
            begun = read_clock(begun, contributions[-1].gradients, contributions[-1].report)
        return reduce(add_contributions, contributions), batches, waited


def _float_to_bits(value: float) -> int:
    """Return the number whose bits are those of a double: what tasks agree on are integers."""
    return int(np.array(value, np.float64).view(np.int64))


def _bits_to_float(bits: int) -> float:
    return float(np.array(bits, np.int64).view(np.float64))
