"""The experiment of `fit`: a model that exists already, and data as Keras takes it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras.src.trainers import data_adapters
from tensorflow.python.eager import context

from phalanx.data import Pipeline
from phalanx.errors import ConfigurationError, DataError
from phalanx.train.context import Context
from phalanx.train.experiment import Experiment
from phalanx.train.keras_fit.global_batches import (
    GlobalBatches,
    PassCounter,
    check_is_batched,
    make_without_batches,
    slice_batches,
)
from phalanx.train.runtime.topology import Strategy
from phalanx.train.step.report_values import batch_length
from phalanx.train.types import Batch, Dataset, Model

DEFAULT_BATCH_SIZE = 32


class SharedData(Protocol):
    """Data that the tasks of a cluster share."""

    def slice(self, context: Context) -> Dataset:
        """Return this task's part of each batch: one slice for each of its replicas."""

    @property
    def order(self) -> str:
        """What the order of the data depends on, and what must be the same in all tasks."""

    @property
    def is_portable(self) -> bool:
        """Whether the chief can send the data to workers, which then need not make it."""

    @property
    def num_batches(self) -> int | None:
        """How many batches all tasks share, or None if that is unknown or if they never end."""

    def deal(self, context: Context, in_order: bool = False) -> Dataset:
        """Return this task's batches: with n tasks, every n-th one.

        Unless they must be dealt in order, tasks may read files of their own instead.
        """


class FitExperiment(Experiment):
    """Trains a compiled model on shared data.

    Args:
        model: The compiled model.
        train: The data to train on.
        evaluation: The data to evaluate.
        whole_batches: Whether each trainer takes whole batches, as asynchronous ones do, instead of
            its part of each batch.
    """

    def __init__(
        self,
        model: Model,
        train: SharedData | None = None,
        evaluation: SharedData | None = None,
        *,
        whole_batches: bool = False,
    ) -> None:
        super().__init__(name=model.name)
        self._model = model
        self._train = train
        self._evaluation = evaluation
        self._whole_batches = whole_batches

    def order(self, strategy: Strategy) -> str:
        """Return what must be the same in all tasks: the order of the data that several make.

        On parameter servers, the chief sends its data to the workers if it can, and evaluates what
        it cannot send alone.
        """
        shared = [self._train, self._evaluation]
        if strategy is Strategy.ONE_PROCESS:
            shared = []
        elif strategy.has_ps:
            shared = [data for data in [self._train] if data is not None and not data.is_portable]
        return "; ".join(data.order for data in shared if data is not None)

    @property
    def steps_per_pass(self) -> int | None:
        """How many steps all trainers take in a pass over the data: one for each whole batch."""
        return None if self._train is None else self._train.num_batches

    def model(self) -> Model:
        return self._model

    def train_data(self, context: Context) -> Dataset:
        if self._train is None:
            # An evaluation must not read data twice: what is read for training has no batch.
            assert self._evaluation is not None
            return make_without_batches(self._evaluation.deal(context))
        return self._train.deal(context) if self._whole_batches else self._train.slice(context)

    def eval_data(self, context: Context) -> Dataset | None:
        return None if self._evaluation is None else self._evaluation.deal(context)


@dataclass(frozen=True)
class PipelineBatches:
    """The batches of a `phalanx.data.Pipeline`, of which each task reads only its share."""

    pipeline: Pipeline
    batch_size: int

    @property
    def order(self) -> str:
        return str(self.pipeline.seed)

    @property
    def is_portable(self) -> bool:
        return True

    @property
    def num_batches(self) -> int | None:
        return int(self.pipeline.dataset(self.batch_size, epochs=1).cardinality())

    def slice(self, context: Context) -> Dataset:
        size, rest = divmod(self.batch_size, context.num_replicas)
        if rest or not size:
            # Each task reads all examples and takes its slices, which are not equally large.
            whole = replace(context, num_shards=1, shard=0)
            data = self.pipeline.dataset(self.batch_size, share=whole, epochs=1)
            return slice_batches(data, context)
        return self.pipeline.dataset(size, share=context, epochs=1)

    def deal(self, context: Context, in_order: bool = False) -> Dataset:
        if in_order:
            whole = self.pipeline.dataset(self.batch_size, epochs=1)
            return whole.shard(context.num_shards, context.shard)
        return self.pipeline.dataset(self.batch_size, share=context, epochs=1)


@dataclass(frozen=True)
class FitData:
    """The arguments of `fit` or `evaluate` that describe the data."""

    x: Any
    y: Any = None
    sample_weight: Any = None
    class_weight: Mapping[int, float] | None = None
    batch_size: int | None = None
    shuffle: bool | str = False
    steps: int | None = None
    """Use only so many batches."""

    def share(self, seed: int | None) -> SharedData:
        """Return the data as batches that tasks share.

        With a seed, the order is the same in all tasks that have this seed, and in a process that
        is started again.
        """
        if isinstance(self.x, Pipeline):
            self._check_pipeline()
            return PipelineBatches(self.x, self.batch_size or DEFAULT_BATCH_SIZE)
        adapter = self._adapt()
        if isinstance(self.x, tf.data.Dataset):
            check_is_batched(self.x.element_spec, "x")
            return GlobalBatches(self._cut(adapter.get_tf_dataset()), seed)
        if isinstance(self.x, keras.utils.PyDataset):
            passes = PassCounter()
            return GlobalBatches(self._cut(_read_epochs(adapter, seed, passes)), seed, passes)
        # If the program has set a seed, Keras' own order is the same everywhere.
        is_random = seed is not None and context.global_seed() is None
        if is_random and self.shuffle and adapter.num_batches:
            return GlobalBatches(self._cut(self._shuffle_arrays(seed)))
        return GlobalBatches(self._cut(adapter.get_tf_dataset()), length=adapter.num_batches)

    def check_end(self, name: str, steps: int | None, argument: str) -> None:
        """Raise an error for a dataset that does not end, unless a number of steps is set."""
        is_dataset = isinstance(self.x, tf.data.Dataset)
        if (
            steps is None
            and is_dataset
            and bool(self.x.cardinality() == tf.data.INFINITE_CARDINALITY)
        ):
            raise ConfigurationError(
                f"{name} is a dataset that never ends, and {argument} is not set: set it, or leave "
                "out .repeat()"
            )

    def check_batches(self, purpose: str) -> None:
        """Raise an error for data that is known to be empty."""
        if self._adapt().num_batches == 0:
            raise no_batch(purpose)

    def check_input(self) -> None:
        """Raise an error for a batch size beside data that has batches, and for no data."""
        if self.x is None:
            raise ConfigurationError(
                "x is None: pass arrays, a tf.data.Dataset, a keras.utils.PyDataset, a generator "
                "or a phalanx.data.Pipeline"
            )
        is_batched = isinstance(self.x, tf.data.Dataset | keras.utils.PyDataset)
        if is_batched and self.batch_size is not None:
            raise ConfigurationError(
                f"batch_size is {self.batch_size}, but x is a {type(self.x).__name__}, which has "
                "its batches already: leave batch_size out"
            )

    def _adapt(self, **changes: Any) -> DataAdapter:
        # Keras has no public function for this. Its own gives the errors that its users know.
        adapter: DataAdapter = data_adapters.get_data_adapter(
            **{
                "x": self.x,
                "y": self.y,
                "sample_weight": self.sample_weight,
                "class_weight": self.class_weight,
                "batch_size": self.batch_size,
                # Keras warns about datasets, though True is the default.
                "shuffle": not isinstance(self.x, tf.data.Dataset) and self.shuffle,
                "steps_per_epoch": self.steps,
            }
            | changes
        )
        return adapter

    def _shuffle_arrays(self, seed: int | None) -> Dataset:
        """Shuffle as all tasks do, and in each epoch differently."""
        whole = self._adapt(shuffle=False, batch_size=sys.maxsize).get_tf_dataset()
        arrays = next(iter(whole))
        size = self.batch_size or DEFAULT_BATCH_SIZE
        count = int(batch_length(arrays))
        if self.shuffle == "batch":
            full = tf.data.Dataset.range(count // size * size).batch(size)
            rest = tf.data.Dataset.range(count // size * size, count).batch(size)
            numbers = full.shuffle(max(1, count // size), seed=seed).concatenate(rest)
        else:
            numbers = tf.data.Dataset.range(count).shuffle(count, seed=seed).batch(size)
        return numbers.map(
            lambda batch: tf.nest.map_structure(lambda array: tf.gather(array, batch), arrays),
            num_parallel_calls=tf.data.AUTOTUNE,
        )

    def _cut(self, dataset: Dataset) -> Dataset:
        return dataset if self.steps is None else dataset.take(self.steps)

    def _check_pipeline(self) -> None:
        for name in ("y", "sample_weight", "class_weight", "steps"):
            if getattr(self, name) is not None:
                raise ConfigurationError(
                    f"{name} is set, but x is a phalanx.data.Pipeline, which has its own: put it "
                    "into the batches with the pipeline's map"
                )


def no_batch(purpose: str) -> DataError:
    """Return the error for data that is empty."""
    return DataError(f"x has no batch to {purpose}: check its paths and filters")


class DataAdapter(Protocol):
    """What Keras makes of the arguments of `fit` that describe the data."""

    @property
    def num_batches(self) -> int | None: ...

    def get_tf_dataset(self) -> Dataset: ...

    def get_numpy_iterator(self) -> Iterator[Batch]: ...

    def on_epoch_begin(self) -> None: ...

    def on_epoch_end(self) -> None: ...


def _read_epochs(adapter: DataAdapter, seed: int | None, passes: PassCounter) -> Dataset:
    """Read a PyDataset, and tell it where its epochs begin and end.

    With a seed, the order of each epoch depends on nothing else.
    """

    def read() -> Iterator[Batch]:
        state = random.getstate()
        if seed is not None:
            # Keras shuffles with this generator.
            random.seed(seed + passes.take())
        adapter.on_epoch_begin()
        try:
            batches = adapter.get_numpy_iterator()
            first = list(islice(batches, 1))
            if seed is not None:
                random.setstate(state)
            yield from first
            yield from batches
        finally:
            adapter.on_epoch_end()

    spec = adapter.get_tf_dataset().element_spec
    dataset = tf.data.Dataset.from_generator(read, output_signature=spec)
    if adapter.num_batches is None:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(adapter.num_batches))
