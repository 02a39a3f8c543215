"""The TensorFlow side of pipelines: tensors, specifications for parsing, graphs, tf.data service.

A graph can run in another process without Python. The workers of a ps cluster and tf.data service
read data this way. The examples are the same, each once in an epoch, sharded before they are
shuffled. Their order is TensorFlow's, so that a pipeline cannot be resumed at an exact position.

With tf.data service, other machines read and prepare the data: a dispatcher assigns parts of the
files to data workers, and training tasks fetch batches from them, in no defined order.

    phalanx run --workers 1 --data-workers 2 train.py              # starts all of them
    pipeline.dataset(128, epochs=1, service=context.data_service)  # in train.py
"""

import threading
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import tensorflow as tf

from phalanx.cluster import Cluster, Role, Task, TFConfig
from phalanx.cluster.preflight import check_peers
from phalanx.data.order import ShardInfo, Share
from phalanx.data.record_source import RecordSource
from phalanx.data.sources import ArraySource
from phalanx.data.types import Array, Column, Columns, Default, Specs, Tensor
from phalanx.errors import DataError
from phalanx.records import Kind, Schema
from phalanx.records.arrow import is_list, is_number
from phalanx.records.codec import RAGGED
from phalanx.records.compression import Compression, detect_compression
from phalanx.records.storage import open_input

if TYPE_CHECKING:
    from phalanx.data.pipeline import Pipeline

_TYPES = {Kind.BYTES: tf.string, Kind.FLOAT: tf.float32, Kind.INT64: tf.int64}
_UNSUPPORTED_SCHEMES = ("hdfs", "viewfs", "s3")
WAIT_SECONDS = 300.0
_SHUFFLE_BUFFER = 10_000
_TF_COMPRESSION = {Compression.NONE: "", Compression.GZIP: "GZIP", Compression.ZLIB: "ZLIB"}


def parse_spec(
    schema: Schema, defaults: Mapping[str, Default] | None = None
) -> Specs | tuple[Specs, Specs]:
    """The features for `tf.io.parse_example`, or the two for `tf.io.parse_sequence_example`."""
    context: Specs = {}
    steps: Specs = {}
    for feature in schema.features:
        specs, dtype = steps if feature.sequence else context, _TYPES[feature.kind]
        if feature.shape == (None,):
            specs[feature.name] = tf.io.RaggedFeature(dtype)
        elif feature.sequence:
            specs[feature.name] = tf.io.FixedLenSequenceFeature(feature.shape, dtype)
        else:
            default = (defaults or {}).get(feature.name)
            specs[feature.name] = tf.io.FixedLenFeature(feature.shape, dtype, default)
    return (context, steps) if schema.is_sequence else context


def signature_of(columns: Columns, batch_size: int | None) -> Specs:
    """The types and shapes of the tensors that such columns are converted to."""
    return {name: _spec(column, batch_size) for name, column in columns.items()}


def _spec(column: Column, batch_size: int | None) -> tf.TypeSpec:
    if isinstance(column, np.ndarray):
        return tf.TensorSpec((batch_size, *column.shape[1:]), tf.as_dtype(column.dtype))
    depth, type_ = 0, column.type
    while is_list(type_):
        depth, type_ = depth + 1, type_.value_type
    dtype = tf.as_dtype(type_.to_pandas_dtype()) if is_number(type_) else tf.string
    if pa.types.is_fixed_size_list(column.type):
        return tf.TensorSpec((batch_size, column.type.list_size), dtype)
    if depth == 0:
        return tf.TensorSpec((batch_size,), dtype)
    return tf.RaggedTensorSpec((batch_size, *[None] * depth), dtype, ragged_rank=depth)


def to_tensors(columns: Columns) -> dict[str, Tensor]:
    """Convert columns to what a generator of `tf.data` yields: arrays and ragged tensors."""
    return {name: _to_tensor(column) for name, column in columns.items()}


def _to_tensor(column: Column) -> Tensor:
    if isinstance(column, np.ndarray):
        return column
    if pa.types.is_fixed_size_list(column.type):
        return _flat(column.flatten()).reshape(len(column), column.type.list_size)
    if not is_list(column.type):
        return _flat(column)
    splits = np.asarray(column.offsets).astype(np.int64)
    values = column.values.slice(splits[0], splits[-1] - splits[0])
    return tf.RaggedTensor.from_row_splits(_to_tensor(values), splits - splits[0])


def _flat(values: pa.Array) -> Array:
    if is_number(values.type):
        return np.asarray(values)
    result = np.empty(len(values), object)
    result[:] = values.to_pylist()
    return result


def graph_dataset(
    pipeline: "Pipeline",
    batch_size: int,
    *,
    share: ShardInfo,
    epochs: int | None,
    drop_remainder: bool,
    start: int = 0,
) -> tf.data.Dataset:
    """The batches of a pipeline as a graph; see `Pipeline.dataset`."""
    source = pipeline.source
    if isinstance(source, RecordSource):
        dataset = _read_records(source)
    elif isinstance(source, ArraySource):
        dataset = tf.data.Dataset.from_tensor_slices(dict(source.arrays))
    else:
        raise DataError(
            f"a {type(source).__name__} cannot be read in another process, by the workers of "
            "parameter servers or tf.data service: write TFRecord files first (phalanx records "
            "convert)"
        )
    if share.num_shards > 1:
        dataset = dataset.shard(share.num_shards, share.shard)
    if pipeline.seed is not None:
        dataset = dataset.shuffle(_SHUFFLE_BUFFER, seed=pipeline.seed)
    dataset = dataset.repeat(epochs).skip(start // share.num_shards)
    dataset = dataset.batch(batch_size, drop_remainder=drop_remainder)
    if isinstance(source, RecordSource):
        signature = pipeline.signature(batch_size if drop_remainder else None)
        dataset = dataset.map(
            lambda each: _parse(source, each, signature), num_parallel_calls=tf.data.AUTOTUNE
        )
    # Positions count the examples that all workers have read before, as in `Pipeline.dataset`.
    first, step = start + share.shard, batch_size * share.num_shards
    first += getattr(share, "epoch", 0) * (epochs or 0) * len(source)
    numbered = dataset.enumerate().map(lambda number, batch: (batch, first + number * step))
    return pipeline.apply(numbered)


def _read_records(source: RecordSource) -> tf.data.Dataset:
    """Serialized Examples from several files in turn, in the same order for every worker."""
    scheme = source.files[0].partition("://")[0].lower()
    if scheme in _UNSUPPORTED_SCHEMES:
        raise DataError(
            f"{source.files[0]} cannot be read by the workers of parameter servers or by tf.data "
            f"service: TensorFlow 2.21 reads there, and knows no {scheme}://. Mount or copy the "
            "files, or train synchronously without parameter servers"
        )
    for feature in source.schema.features:
        if feature.width == RAGGED and feature.name in source.defaults:
            raise DataError(
                f"feature {feature.name!r} has any number of values, and its default cannot be "
                "filled in by the workers of parameter servers or by tf.data service: write it to "
                "the files, or train synchronously without parameter servers"
            )
    with open_input(source.files[0]) as file:
        compression = _TF_COMPRESSION[detect_compression(file)]
    files = tf.data.Dataset.from_tensor_slices(list(source.files))
    return files.interleave(
        lambda path: tf.data.TFRecordDataset(path, compression),
        cycle_length=min(len(source.files), 16),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _parse(source: RecordSource, messages: Tensor, signature: Specs) -> dict[str, Tensor]:
    """Parse Examples to the same tensors as `Pipeline.dataset`."""
    spec = parse_spec(source.schema, source.defaults)
    if isinstance(spec, tuple):
        context, steps, _ = tf.io.parse_sequence_example(messages, *spec)
        features = {**context, **steps}
    else:
        features = tf.io.parse_example(messages, spec)
    for name, dtype in source.raw.items():
        features[name] = tf.io.decode_raw(features[name], tf.as_dtype(dtype))
    for name, value in features.items():
        if isinstance(value, tf.RaggedTensor):
            features[name] = value.with_row_splits_dtype(tf.int64)
        else:
            features[name] = tf.ensure_shape(value, signature[name].shape)
    return features


def run_dispatcher(port: int, stop: threading.Event, *, work_dir: str | None = None) -> None:
    """Run a dispatcher until `stop` is set; with a `work_dir` it keeps its state over restarts."""
    service = tf.data.experimental.service
    config = service.DispatcherConfig(
        port=port, work_dir=work_dir, fault_tolerant_mode=work_dir is not None
    )
    # The server ends when nothing refers to it.
    server = service.DispatchServer(config)
    stop.wait()
    del server


def run_data_worker(
    dispatcher: str, port: int, stop: threading.Event, *, host: str = "localhost"
) -> None:
    """Run a data worker until `stop` is set; training tasks reach it at `host`."""
    # TensorFlow would also wait, but block Python and ignore signals.
    _wait_for_dispatcher(dispatcher, WAIT_SECONDS)
    service = tf.data.experimental.service
    config = service.WorkerConfig(
        dispatcher_address=dispatcher, worker_address=f"{host}:{port}", port=port
    )
    server = service.WorkerServer(config)
    stop.wait()
    del server


def served_dataset(
    pipeline: "Pipeline",
    dispatcher: str,
    batch_size: int,
    *,
    epochs: int | None = None,
    drop_remainder: bool = False,
    wait_seconds: float = WAIT_SECONDS,
) -> tf.data.Dataset:
    """The batches of a pipeline, prepared by data workers and shared by all tasks.

    The pipeline must read TFRecord files that the data workers see under the same paths. All tasks
    together read each example once in their first iteration, and once more in the second.
    """
    if not isinstance(pipeline.source, RecordSource):
        kind = type(pipeline.source).__name__
        raise DataError(f"tf.data service reads TFRecord files, not a {kind}: write them first")
    _wait_for_dispatcher(dispatcher, wait_seconds)
    is_fixed = epochs is None or drop_remainder
    dataset = graph_dataset(
        pipeline, batch_size, share=Share(), epochs=epochs, drop_remainder=is_fixed
    )
    service = tf.data.experimental.service
    distribute = service.distribute(
        processing_mode=service.ShardingPolicy.DYNAMIC,
        service=dispatcher if "://" in dispatcher else f"grpc://{dispatcher}",
        job_name=_name_job(pipeline.source, batch_size),
    )
    return dataset.apply(distribute)


def _wait_for_dispatcher(address: str, seconds: float) -> None:
    """Wait with a limit; TensorFlow itself would retry silently for an hour."""
    target = address.rpartition("://")[2]
    if not target.rpartition(":")[2].isdecimal():
        raise DataError(f"{address!r} is not the address of a dispatcher: write host:port")
    dispatcher = Cluster({Task(Role.DISPATCHER): target})
    [report] = check_peers(TFConfig(dispatcher), timeout=seconds, wait=True)
    if report.reason:
        raise DataError(f"gave up after {seconds:.0f} s waiting for {report}")


def _name_job(source: RecordSource, batch_size: int) -> str:
    """The same name for all tasks that read the same data."""
    text = "\n".join([*source.files, str(batch_size)])
    return f"phalanx-{zlib.crc32(text.encode()):08x}"
