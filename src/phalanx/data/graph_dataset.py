"""Pipelines as TensorFlow graphs, which can run in another process without Python.

The workers of a ps cluster and tf.data service read data this way. The examples are the same, each
once in an epoch, sharded before they are shuffled. Their order is TensorFlow's, so that a pipeline
cannot be resumed at an exact position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from phalanx.data.record_source import RecordSource
from phalanx.data.sharding import ShardInfo
from phalanx.data.sources import ArraySource
from phalanx.data.tensors import parse_spec
from phalanx.data.types import Specs, Tensor
from phalanx.errors import DataError
from phalanx.records.codec import RAGGED
from phalanx.records.compression import Compression, detect_compression
from phalanx.records.storage import open_input

if TYPE_CHECKING:
    from phalanx.data.pipeline import Pipeline

_UNSUPPORTED_SCHEMES = ("hdfs", "viewfs", "s3")
_SHUFFLE_BUFFER = 10_000
_TF_COMPRESSION = {Compression.NONE: "", Compression.GZIP: "GZIP", Compression.ZLIB: "ZLIB"}


def graph_dataset(
    pipeline: Pipeline,
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
            lambda messages: _parse(source, messages, signature),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    # Positions count the examples that all workers have read before, as in `Pipeline.dataset`.
    first, step = start + share.shard, batch_size * share.num_shards
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
