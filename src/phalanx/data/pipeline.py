"""Pipelines from examples to batches: read, shard, shuffle, parse, map, batch, prefetch."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self

import numpy as np
import pyarrow as pa

from phalanx.data.order import Order, ReadRequest, ShardInfo, Share, count_share
from phalanx.data.record_source import RecordSource
from phalanx.data.sources import (
    ArraySource,
    BinarySource,
    ParquetSource,
    Source,
    TableSource,
    read_csv,
)
from phalanx.data.types import Array, Batch, BatchFunction, Columns, Dataset, Default, Specs, Tensor
from phalanx.errors import DataError
from phalanx.records import Schema
from phalanx.records.types import Paths


@dataclass(frozen=True)
class Transform:
    """A function of a batch; if `seeded`, also of a seed that is different for each batch."""

    function: BatchFunction
    seeded: bool = False


@dataclass(frozen=True)
class Pipeline:
    """Examples from a source, in a fixed order, as batches to which functions are applied.

        pipeline = Pipeline.from_records("train-*.tfrecord", seed=1, raw={"image": "uint8"})
        pipeline = pipeline.map(lambda batch: (batch["image"], batch["label"]))
        for images, labels in pipeline.dataset(batch_size=128):
            ...

    The order depends only on the seed, not on the number of workers. `dataset(128, start=seen)`
    resumes after `seen` examples, however many workers have read them.

    Attributes:
        source: Where the examples are read from.
        seed: Shuffles the examples, differently in each epoch; by default they stay in order.
        transforms: The functions added by `map`.
    """

    source: Source
    seed: int | None = None
    transforms: tuple[Transform, ...] = ()

    @classmethod
    def from_records(
        cls,
        paths: Paths,
        schema: Schema | None = None,
        *,
        seed: int | None = None,
        columns: Sequence[str] | None = None,
        raw: Mapping[str, str] | None = None,
        defaults: Mapping[str, Default] | None = None,
    ) -> Self:
        """Read TFRecord files of Examples or SequenceExamples.

        Args:
            paths: The files, as for `records.expand`.
            schema: The schema, by default as for `records.read_batches`.
            seed: Shuffles the examples.
            columns: The features to decode, by default all of the schema.
            raw: The dtype of features whose bytes are numbers, as in `{"image": "uint8"}`.
            defaults: Values that replace features that an example lacks.

        Returns:
            The pipeline.
        """
        opened = RecordSource.open(paths, schema, columns=columns, raw=raw, defaults=defaults)
        return cls(opened, seed)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], *, seed: int | None = None) -> Self:
        """Read NumPy arrays that have a row for each example.

        Args:
            arrays: An array for each feature.
            seed: Shuffles the examples.

        Returns:
            The pipeline.
        """
        return cls(ArraySource(dict(arrays)), seed)

    @classmethod
    def from_table(cls, table: pa.Table, *, seed: int | None = None) -> Self:
        """Read an Arrow table.

        Args:
            table: The table.
            seed: Shuffles the examples.

        Returns:
            The pipeline.
        """
        return cls(TableSource(table), seed)

    @classmethod
    def from_parquet(cls, paths: Paths, *, seed: int | None = None) -> Self:
        """Read Parquet files.

        Args:
            paths: The files, as for `records.expand`.
            seed: Shuffles the examples.

        Returns:
            The pipeline.
        """
        return cls(ParquetSource.open(paths), seed)

    @classmethod
    def from_csv(cls, paths: Paths, *, seed: int | None = None) -> Self:
        """Read CSV files with a header.

        Args:
            paths: The files, as for `records.expand`.
            seed: Shuffles the examples.

        Returns:
            The pipeline.
        """
        return cls(read_csv(paths), seed)

    @classmethod
    def from_binary(
        cls, paths: Paths, layout: Mapping[str, Any], *, seed: int | None = None
    ) -> Self:
        """Read files of examples with a fixed number of bytes; see `BinarySource`.

        Args:
            paths: The files, as for `records.expand`.
            layout: The dtype of each feature, or its dtype and shape, in the order of the bytes.
            seed: Shuffles the examples.

        Returns:
            The pipeline.
        """
        return cls(BinarySource.open(paths, layout), seed)

    def map(self, function: BatchFunction, *, seeded: bool = False) -> Self:
        """Apply a function to each batch.

        Args:
            function: A function of a dictionary of tensors, or of the result of the one before.
            seeded: Whether to call it also with a seed for TensorFlow's stateless random
                functions. The seed depends on the position, so that resumed training repeats it.

        Returns:
            A new pipeline.
        """
        return replace(self, transforms=(*self.transforms, Transform(function, seeded)))

    def __len__(self) -> int:
        return len(self.source)

    def epoch_of(self, seen: int) -> tuple[int, int]:
        """The epoch after `seen` examples, and the number of its examples that were read."""
        return divmod(seen, len(self.source))

    def batches(
        self,
        batch_size: int,
        *,
        share: ShardInfo = Share(),  # noqa: B008 - frozen
        start: int = 0,
        epochs: int | None = None,
        drop_remainder: bool = False,
    ) -> Iterator[tuple[Columns, int]]:
        """Read batches of NumPy and Arrow columns, before any function is applied.

        Args:
            batch_size: The number of examples in each batch but the last, across epochs.
            share: The share of the examples to read.
            start: How many examples all workers together have read before.
            epochs: When to end, counted from example 0; by default never.
            drop_remainder: Whether to drop a last batch that is smaller.

        Returns:
            An iterator over batches and their positions.
        """
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}: set it to 1 or more")
        self._check()
        order = Order(len(self.source), self.source.block, self.seed)
        requests = order.plan_reads(
            start, num_shards=share.num_shards, shard=share.shard, epochs=epochs
        )
        rest: Columns = {}
        size, position = 0, 0
        for columns, request in self._load(requests):
            at = 0
            if size:
                at = min(batch_size - size, len(request.picks))
                rest = _concat(rest, _slice(columns, 0, at))
                size += at
                if size < batch_size:
                    continue
                yield rest, position
            full = at + (len(request.picks) - at) // batch_size * batch_size
            for begin in range(at, full, batch_size):
                batch = _slice(columns, begin, begin + batch_size)
                yield batch, request.first + begin * request.step
            size = len(request.picks) - full
            rest = _slice(columns, full, len(request.picks))
            position = request.first + full * request.step
        if size and not drop_remainder:
            yield rest, position

    def _check(self) -> None:
        if len(self.source) == 0:
            raise DataError("there are no examples to read")

    def _load(self, requests: Iterator[ReadRequest]) -> Iterator[tuple[Columns, ReadRequest]]:
        """Read the columns of each request; the next is read while one is used."""
        with ThreadPoolExecutor(1, "phalanx-data") as pool:
            pending: tuple[Future[Columns], ReadRequest] | None = None
            for request in requests:
                submitted = pool.submit(self.source.read, request.ranges, request.picks), request
                if pending is not None:
                    yield pending[0].result(), pending[1]
                pending = submitted
            if pending is not None:
                yield pending[0].result(), pending[1]

    def dataset(
        self,
        batch_size: int,
        *,
        share: ShardInfo = Share(),  # noqa: B008 - frozen
        start: int = 0,
        epochs: int | None = None,
        drop_remainder: bool = False,
        prefetch: int | None = None,
        service: str | None = None,
    ) -> Dataset:
        """Make a `tf.data.Dataset` of the batches of one worker.

        Inside a graph, as for the workers of parameter servers, it has the same examples in an
        order of TensorFlow's own; see `phalanx.data.tensors`.

        Args:
            batch_size: The number of examples in each batch of this worker.
            share: The share of the examples to read.
            start: How many examples all workers together have read before.
            epochs: When to end, counted from example 0; by default never.
            drop_remainder: Whether to drop a last batch that is smaller.
            prefetch: The number of batches to prefetch; by default TensorFlow chooses.
            service: The address of a tf.data service dispatcher, whose data workers prepare the
                batches for all tasks. `share` and `start` then do not apply.

        Returns:
            The dataset.
        """
        import tensorflow as tf  # noqa: PLC0415

        from phalanx.data.tensors import graph_dataset, served_dataset, to_tensors  # noqa: PLC0415

        self._check()
        buffer_size = tf.data.AUTOTUNE if prefetch is None else prefetch
        if service is not None:
            served = served_dataset(
                self, service, batch_size, epochs=epochs, drop_remainder=drop_remainder
            )
            return served.prefetch(buffer_size)
        is_fixed = epochs is None or drop_remainder
        if not tf.executing_eagerly():
            return graph_dataset(
                self, batch_size, share=share, epochs=epochs, drop_remainder=is_fixed, start=start
            )

        # A restarted run continues with the order of the pass that it has reached.
        passes = count(getattr(share, "epoch", 0))

        def generate() -> Iterator[tuple[dict[str, Tensor], int]]:
            number = next(passes)
            pipeline = self if self.seed is None else replace(self, seed=self.seed + number)
            for columns, position in pipeline.batches(
                batch_size, share=share, start=start, epochs=epochs, drop_remainder=drop_remainder
            ):
                yield to_tensors(columns), position + number * (epochs or 0) * len(self.source)

        signature = self.signature(batch_size if is_fixed else None)
        spec = (signature, tf.TensorSpec((), tf.int64))
        dataset = tf.data.Dataset.from_generator(generate, output_signature=spec)
        if epochs is not None:
            examples = count_share(share, start, epochs * len(self.source))
            batches = examples // batch_size if drop_remainder else -(-examples // batch_size)
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches))
        return self.apply(dataset).prefetch(buffer_size)

    def signature(self, batch_size: int | None) -> Specs:
        """The `tf.TypeSpec` of each feature of a batch, before any function is applied."""
        from phalanx.data.tensors import signature_of  # noqa: PLC0415

        return signature_of(self.source.read([(0, 1)], np.zeros(1, np.int64)), batch_size)

    def apply(self, dataset: Dataset) -> Dataset:
        """Apply the functions to a dataset of (batch, position)."""
        import tensorflow as tf  # noqa: PLC0415

        def transform_batch(batch: Batch, position: Tensor) -> Batch:
            for number, transform in enumerate(self.transforms):
                if transform.seeded:
                    seed = tf.stack([(self.seed or 0) + (number << 32), position])
                    batch = transform.function(batch, seed)
                else:
                    batch = transform.function(batch)
            return batch

        return dataset.map(transform_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _slice(columns: Columns, begin: int, end: int) -> Columns:
    return {name: column[begin:end] for name, column in columns.items()}


def _concat(first: Columns, second: Columns) -> Columns:
    return {
        name: np.concatenate([column, second[name]])
        if isinstance(column, np.ndarray)
        else pa.concat_arrays([column, second[name]])
        for name, column in first.items()
    }
