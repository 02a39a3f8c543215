"""Global batches: a dataset for all replicas together, as Keras takes it, and its sharing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.context import Context
from phalanx.train.runtime.worker_data import is_sendable, read_graph
from phalanx.train.step.report_values import batch_length
from phalanx.train.types import Batch, Dataset, ElementSpec, GraphDef, Tensor, TensorProto

_FILE_READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
_POLICIES = tf.data.experimental.AutoShardPolicy


@dataclass
class PassCounter:
    """Counts the passes over a dataset."""

    next: int = 0

    def take(self) -> int:
        """Return the number of a pass that begins now."""
        self.next += 1
        return self.next - 1


@dataclass(frozen=True)
class GlobalBatches:
    """A dataset of batches for all replicas together, which every task of a cluster has made.

    Attributes:
        dataset: The batches.
        seed: A seed that all tasks know, for each shuffle of the dataset that has none. None: the
            order of the batches is the same in all tasks already.
        passes: Counts the passes over a dataset that Python makes.
        length: How many batches there are, where Keras knows it better than TensorFlow.
    """

    dataset: Dataset
    seed: int | None = None
    passes: PassCounter | None = None
    length: int | None = None

    @property
    def element_spec(self) -> ElementSpec:
        return self.dataset.element_spec

    @property
    def num_batches(self) -> int | None:
        """How many batches there are, or None if that is unknown or if they never end."""
        count = int(self.dataset.cardinality())
        return count if count >= 0 else self.length

    def slice(self, context: Context) -> Dataset:
        """Return this task's part of each batch: one slice for each of its replicas.

        All replicas together see the batches that a single process would see.
        """
        self._set_pass(context)
        replicas = context.num_replicas
        if replicas == 1:
            return self._open()
        check_can_be_sliced(self.element_spec)
        if self._batch_size % replicas == 0 and self._is_sharded_by_files(context):
            return self._shard_by_files(context).rebatch(self._batch_size // replicas)
        return slice_batches(self._open(), context)

    def deal(self, context: Context, in_order: bool = False) -> Dataset:
        """Return this task's batches: with n tasks, every n-th one, or those of every n-th file."""
        self._set_pass(context)
        if context.num_shards == 1:
            return self._open()
        if not in_order and self._is_sharded_by_files(context):
            return self._shard_by_files(context)
        return self._open().shard(context.num_shards, context.shard)

    def _set_pass(self, context: Context) -> None:
        if self.passes is not None and context.epoch:
            self.passes.next = context.epoch

    def _open(self) -> Dataset:
        if tf.executing_eagerly() and (self.seed is None or self._graph is None):
            return self.dataset
        if not tf.executing_eagerly() and not self.is_portable:
            raise ConfigurationError("the dataset cannot be read by another process")
        # TensorFlow would evaluate a constant in advance, and cannot store the resulting dataset.
        graph: GraphDef = self._graph
        text = tf.where(tf.timestamp() > 0, graph.SerializeToString(), "")
        variant = tf.raw_ops.DatasetFromGraph(graph_def=text)
        return tf.data.experimental.from_variant(variant, self.element_spec)

    @cached_property
    def is_portable(self) -> bool:
        """Whether the dataset can be sent to another process, which then reads it."""
        graph = self._graph
        return graph is not None and is_sendable(graph)

    @cached_property
    def _graph(self) -> GraphDef | None:
        """The operations of the dataset; None if TensorFlow cannot write them down."""
        # This may be called while a function is traced.
        with tf.init_scope():
            try:
                graph = read_graph(self.dataset)
            except tf.errors.OpError:
                return None
        _set_seeds(graph, self.seed)
        return graph

    @property
    def order(self) -> str:
        """The seeds of all shuffles, which must be the same in all tasks."""
        graph = self._graph
        return "" if graph is None else ",".join(map(str, _read_seeds(graph)))

    @cached_property
    def _batch_size(self) -> int:
        with tf.init_scope():
            return next((int(batch_length(batch)) for batch in self.dataset.take(1)), 0)

    def _is_sharded_by_files(self, context: Context) -> bool:
        """Whether every task reads files of its own, instead of all data."""
        if self.seed is None or self._graph is None or not _reads_files(self._graph):
            return False
        return self._has_files_for(context.num_shards)

    def _has_files_for(self, shards: int) -> bool:
        with tf.init_scope():
            policy = self.dataset.options().experimental_distribute.auto_shard_policy
            if policy not in (_POLICIES.AUTO, _POLICIES.FILE):
                return False
            last = Context(num_shards=shards, shard=shards - 1)
            try:
                has_files = any(True for _ in self._shard_by_files(last).take(1))
            except tf.errors.OpError:
                has_files = False
            if policy is _POLICIES.FILE and not has_files:
                raise ConfigurationError(
                    f"the auto_shard_policy of the dataset is FILE, but {shards} tasks cannot "
                    "share its files: write more files, or set the policy to DATA"
                )
            return has_files

    def _shard_by_files(self, context: Context) -> Dataset:
        flat = tf.nest.flatten(self.element_spec)
        [variant] = tf.nest.flatten(self._open(), expand_composites=True)
        variant = tf.raw_ops.AutoShardDataset(
            input_dataset=variant,
            num_workers=context.num_shards,
            index=context.shard,
            auto_shard_policy=_POLICIES.FILE.value,
            output_types=[spec.dtype for spec in flat],
            output_shapes=[spec.shape for spec in flat],
        )
        return tf.data.experimental.from_variant(variant, self.element_spec)


def check_is_batched(element_spec: ElementSpec, name: str) -> None:
    """Raise an error for a dataset of single examples."""
    for spec in tf.nest.flatten(element_spec):
        shape = getattr(spec, "shape", None)
        if shape is not None and shape.rank == 0:
            raise ConfigurationError(
                f"{name} is a dataset whose elements have no batch dimension ({spec}): call "
                ".batch(batch_size) on it"
            )


def check_can_be_sliced(element_spec: ElementSpec) -> None:
    """Raise an error for elements whose parts differ in the number of their examples."""
    specs = [spec for spec in tf.nest.flatten(element_spec) if isinstance(spec, tf.TensorSpec)]
    if len({spec.shape[0] for spec in specs if spec.shape.rank} - {None}) > 1:
        shapes = ", ".join(str(tuple(spec.shape)) for spec in specs)
        raise ConfigurationError(
            f"x is a dataset whose elements have the shapes {shapes}, which do not begin with the "
            "same number of examples, so that replicas cannot share them: call .batch(batch_size) "
            "on it"
        )


def make_without_batches(dataset: Dataset) -> Dataset:
    """Return a dataset like another, but without batches, which does not read the other one."""
    # A dataset that is known to be empty would be taken for a mistake.
    return dataset.take(0).filter(lambda *batch: True)


def slice_batches(dataset: Dataset, context: Context) -> Dataset:
    """Return the slices of each batch that belong to the replicas of this task."""
    replicas, local = context.num_replicas, context.num_replicas // context.num_shards
    first = context.shard * local

    def slice_for_each(*batch: Batch) -> Dataset:
        numbers = tf.data.Dataset.range(first, first + local)
        return numbers.map(lambda number: _slice(_unpack(batch), number, replicas))

    if local > 1:
        return dataset.flat_map(slice_for_each)
    return dataset.map(
        lambda *batch: _slice(_unpack(batch), tf.constant(first, tf.int64), replicas),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def _unpack(batch: tuple[Batch, ...]) -> Batch:
    """Return the element of a dataset from the arguments of a function that is mapped over it."""
    return batch[0] if len(batch) == 1 else batch


def _slice(batch: Batch, number: Tensor, count: int) -> Batch:
    """Return part `number` of `count` almost equal parts of a batch."""
    length = tf.cast(batch_length(batch), tf.int64)
    begin, end = length * number // count, length * (number + 1) // count
    return tf.nest.map_structure(_slicer(begin, end), batch)


def _slicer(begin: Tensor, end: Tensor) -> Callable[[Tensor], Tensor]:
    def slice_tensor(value: Tensor) -> Tensor:
        if isinstance(value, tf.SparseTensor):
            rest = value.dense_shape[1:]
            start = tf.concat([[begin], tf.zeros_like(rest)], 0)
            return tf.sparse.slice(value, start, tf.concat([[end - begin], rest], 0))
        return value[begin:end]

    return slice_tensor


def _nodes(graph: GraphDef) -> Iterator[GraphDef]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _reads_files(graph: GraphDef) -> bool:
    operations = [node.op for node in _nodes(graph)]
    # A part of the files does not have the length that is asserted for all.
    has_length = any(name.startswith("AssertCardinality") for name in operations)
    return not has_length and any(name.startswith(_FILE_READERS) for name in operations)


def _set_seeds(graph: GraphDef, seed: int | None) -> None:
    """Give each shuffle its own state, and a seed if it has none."""
    for number, (first, second, generator) in enumerate(_shuffles(graph), 1):
        if seed is not None and list(first.int64_val) == list(second.int64_val) == [0]:
            first.int64_val[:], second.int64_val[:] = [seed], [number]
        # The state in this process would be used in place of the seeds.
        generator.resource_handle_val[0].name = f"shuffle-{uuid.uuid4().hex}"


def _read_seeds(graph: GraphDef) -> Iterator[int]:
    for first, second, _ in _shuffles(graph):
        yield from (first.int64_val[0], second.int64_val[0])
    for node in _nodes(graph):
        if node.op == "RandomShuffle":
            yield from (node.attr["seed"].i, node.attr["seed2"].i)


def _shuffles(graph: GraphDef) -> Iterator[tuple[TensorProto, ...]]:
    """Return the two seeds and the state of each shuffle."""
    constants = {node.name: node.attr["value"].tensor for node in graph.node if node.op == "Const"}
    for node in graph.node:
        if node.op == "ShuffleDatasetV3":
            yield tuple(constants[name] for name in node.input[2:5])
