"""From examples to batches: read, shard, shuffle, parse, map, batch, prefetch.

    pipeline = Pipeline.from_records("train-*.tfrecord", seed=1, raw={"image": "uint8"})
    pipeline = pipeline.map(lambda batch: (batch["image"], batch["label"]))
    for images, labels in pipeline.dataset(batch_size=128):
        ...

The order depends on the seed alone, never on how many read. `start` takes up a position exactly:
`pipeline.dataset(128, start=seen)` gives what comes after `seen` examples, however many workers
saw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from phalanx.data.order import Order, Reading
from phalanx.data.record_source import RecordSource
from phalanx.data.sharding import Share, Sharing, count_share
from phalanx.data.sources import ArraySource, BinarySource, Columns, Source
from phalanx.data.table_source import ParquetSource, TableSource, read_csv
from phalanx.errors import DataError
from phalanx.records import Schema

if TYPE_CHECKING:
    import tensorflow as tf

Function = Callable[..., Any]


@dataclass(frozen=True)
class Transform:
    """A function of a whole batch; if `seeded`, it is also given a seed that no other batch has."""

    function: Function
    seeded: bool = False


@dataclass(frozen=True)
class Pipeline:
    """Examples from a source, in an order, changed by functions, in batches.

    With a seed the examples are shuffled, in another order each epoch; without one they come in
    the order in which they are stored.
    """

    source: Source
    seed: int | None = None
    transforms: tuple[Transform, ...] = ()

    @classmethod
    def from_records(
        cls,
        paths: Any,
        schema: Schema | None = None,
        *,
        seed: int | None = None,
        columns: Sequence[str] | None = None,
        raw: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> Pipeline:
        """From TFRecord files of Examples or SequenceExamples; see `RecordSource`."""
        opened = RecordSource.open(paths, schema, columns=columns, raw=raw, defaults=defaults)
        return cls(opened, seed)

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray[Any, Any]], *, seed: int | None = None
    ) -> Pipeline:
        """From NumPy arrays that have a row for each example."""
        return cls(ArraySource(dict(arrays)), seed)

    @classmethod
    def from_table(cls, table: pa.Table, *, seed: int | None = None) -> Pipeline:
        """From an Arrow table."""
        return cls(TableSource(table), seed)

    @classmethod
    def from_parquet(cls, paths: Any, *, seed: int | None = None) -> Pipeline:
        """From Parquet files."""
        return cls(ParquetSource.open(paths), seed)

    @classmethod
    def from_csv(cls, paths: Any, *, seed: int | None = None) -> Pipeline:
        """From CSV files with a header."""
        return cls(read_csv(paths), seed)

    @classmethod
    def from_binary(
        cls, paths: Any, layout: Mapping[str, Any], *, seed: int | None = None
    ) -> Pipeline:
        """From files of examples with a fixed number of bytes; see `BinarySource`."""
        return cls(BinarySource.open(paths, layout), seed)

    def map(self, function: Function, *, seeded: bool = False) -> Pipeline:
        """Change each batch by a function of tensors.

        It is given the batch (a dictionary of features, or what the function before it returned)
        and with `seeded` also a seed of two numbers for TensorFlow's stateless random functions:
        the same batch is then changed in the same way, also when training is taken up again.
        """
        return replace(self, transforms=(*self.transforms, Transform(function, seeded)))

    def __len__(self) -> int:
        return len(self.source)

    def epoch_of(self, seen: int) -> tuple[int, int]:
        """The epoch in which training is after `seen` examples, and how many of it were seen."""
        return divmod(seen, len(self.source))

    def batches(
        self,
        batch_size: int,
        *,
        share: Sharing = Share(),  # noqa: B008 - frozen
        start: int = 0,
        epochs: int | None = None,
        drop_remainder: bool = False,
    ) -> Iterator[tuple[Columns, int]]:
        """Batches of NumPy and Arrow columns before any function is applied, and their positions.

        Each has exactly `batch_size` examples, across the ends of epochs, but the very last.
        """
        if batch_size < 1:
            raise DataError(f"a batch of {batch_size} examples cannot be made: take 1 or more")
        self._check()
        order = Order(len(self.source), self.source.block, self.seed)
        readings = order.readings(
            start, num_shards=share.num_shards, shard=share.shard, epochs=epochs
        )
        left: Columns = {}
        size, position = 0, 0
        for columns, reading in self._load(readings):
            at = 0
            if size:
                at = min(batch_size - size, len(reading.picks))
                left = _concat(left, _slice(columns, 0, at))
                size += at
                if size < batch_size:
                    continue
                yield left, position
            full = at + (len(reading.picks) - at) // batch_size * batch_size
            for begin in range(at, full, batch_size):
                piece = _slice(columns, begin, begin + batch_size)
                yield piece, reading.first + begin * reading.step
            size = len(reading.picks) - full
            left = _slice(columns, full, len(reading.picks))
            position = reading.first + full * reading.step
        if size and not drop_remainder:
            yield left, position

    def _check(self) -> None:
        if len(self.source) == 0:
            raise DataError("there are no examples to read")

    def _load(self, readings: Iterator[Reading]) -> Iterator[tuple[Columns, Reading]]:
        """The columns of each reading; the next is loaded while one is used."""
        with ThreadPoolExecutor(1, "phalanx-data") as pool:
            waiting: tuple[Future[Columns], Reading] | None = None
            for reading in readings:
                coming = pool.submit(self.source.read, reading.ranges, reading.picks), reading
                if waiting is not None:
                    yield waiting[0].result(), waiting[1]
                waiting = coming
            if waiting is not None:
                yield waiting[0].result(), waiting[1]

    def dataset(
        self,
        batch_size: int,
        *,
        share: Sharing = Share(),  # noqa: B008 - frozen
        start: int = 0,
        epochs: int | None = None,
        drop_remainder: bool = False,
        prefetch: int | None = None,
        service: str | None = None,
    ) -> tf.data.Dataset:
        """The batches as a `tf.data.Dataset`, for one worker.

        `batch_size` is this worker's, `share` is its part of the examples, `start` is how many
        examples all workers together have seen before. It never ends unless `epochs` are given.

        Called while a graph is made, as for the workers of parameter servers, it gives the same
        examples in an order of TensorFlow's: see `phalanx.data.portable`.

        `service` is the address of a dispatcher of tf.data service, whose data workers then prepare
        the batches: tasks take what is ready, so `share` and `start` do not apply.
        """
        import tensorflow as tf  # noqa: PLC0415

        from phalanx.data.portable import portable_dataset  # noqa: PLC0415
        from phalanx.data.tensors import to_tensors  # noqa: PLC0415

        self._check()
        if service is not None:
            from phalanx.data.service import served_dataset  # noqa: PLC0415

            return served_dataset(
                self,
                service,
                batch_size,
                epochs=epochs,
                drop_remainder=drop_remainder,
                prefetch=prefetch,
            )
        is_fixed = epochs is None or drop_remainder
        if not tf.executing_eagerly():
            return portable_dataset(
                self, batch_size, share=share, epochs=epochs, drop_remainder=is_fixed, start=start
            )

        passes = count()

        def generate() -> Iterator[tuple[Any, int]]:
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
        dataset = self.apply(dataset)
        return dataset.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)

    def signature(self, batch_size: int | None) -> dict[str, Any]:
        """The types and shapes of a batch before any function is applied."""
        from phalanx.data.tensors import signature_of  # noqa: PLC0415

        return signature_of(self.source.read([(0, 1)], np.zeros(1, np.int64)), batch_size)

    def apply(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Apply the functions to a dataset of (batch, position)."""
        import tensorflow as tf  # noqa: PLC0415

        def change(batch: Any, position: Any) -> Any:
            for number, transform in enumerate(self.transforms):
                if transform.seeded:
                    seed = tf.stack([(self.seed or 0) + (number << 32), position])
                    batch = transform.function(batch, seed)
                else:
                    batch = transform.function(batch)
            return batch

        return dataset.map(change, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _slice(columns: Columns, begin: int, end: int) -> Columns:
    return {name: column[begin:end] for name, column in columns.items()}


def _concat(first: Columns, second: Columns) -> Columns:
    return {
        name: np.concatenate([column, second[name]])
        if isinstance(column, np.ndarray)
        else pa.concat_arrays([column, second[name]])
        for name, column in first.items()
    }
