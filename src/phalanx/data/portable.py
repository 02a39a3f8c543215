"""A pipeline made of TensorFlow's own operations alone, so that it can run in another process.

Data on parameter servers' workers and in tf.data service is described here and read elsewhere: no
Python is there to read it with. The examples are the same, each once an epoch, shard before
shuffle; their order is TensorFlow's, so there is no exact position in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from phalanx.data.record_source import RecordSource
from phalanx.data.sharding import Sharing
from phalanx.data.sources import ArraySource
from phalanx.data.tensors import parse_spec
from phalanx.errors import DataError
from phalanx.records.codec import RAGGED
from phalanx.records.compression import Compression, detect_compression
from phalanx.records.storage import open_input

if TYPE_CHECKING:
    from phalanx.data.pipeline import Pipeline

UNKNOWN_TO_TENSORFLOW = ("hdfs", "viewfs", "s3")
_SHUFFLED = 10_000
_TF_COMPRESSION = {Compression.NONE: "", Compression.GZIP: "GZIP", Compression.ZLIB: "ZLIB"}


def portable_dataset(
    pipeline: Pipeline,
    batch_size: int,
    *,
    share: Sharing,
    epochs: int | None,
    drop_remainder: bool,
    start: int = 0,
) -> tf.data.Dataset:
    """The pipeline's batches, for whichever process runs them; see `Pipeline.dataset`."""
    source = pipeline.source
    if isinstance(source, RecordSource):
        dataset = _read_records(source)
    elif isinstance(source, ArraySource):
        dataset = tf.data.Dataset.from_tensor_slices(dict(source.arrays))
    else:
        raise DataError(
            f"a {type(source).__name__} cannot be read in another process, as on parameter servers "
            "or by tf.data service: write TFRecord files first (phalanx records convert)"
        )
    if share.num_shards > 1:
        dataset = dataset.shard(share.num_shards, share.shard)
    if pipeline.seed is not None:
        dataset = dataset.shuffle(_SHUFFLED, seed=pipeline.seed)
    dataset = dataset.repeat(epochs).skip(start // share.num_shards)
    dataset = dataset.batch(batch_size, drop_remainder=drop_remainder)
    if isinstance(source, RecordSource):
        signature = pipeline.signature(batch_size if drop_remainder else None)
        dataset = dataset.map(
            lambda messages: _parse(source, messages, signature),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    # Numbered as in this process, by the examples that all workers have seen before.
    first, step = start + share.shard, batch_size * share.num_shards
    numbered = dataset.enumerate().map(lambda number, batch: (batch, first + number * step))
    return pipeline.apply(numbered)


def _read_records(source: RecordSource) -> tf.data.Dataset:
    """Messages in an order that is the same for every worker, from several files in turn."""
    scheme = source.files[0].partition("://")[0].lower()
    if scheme in UNKNOWN_TO_TENSORFLOW:
        raise DataError(
            f"{source.files[0]} cannot be read on parameter servers' workers or by tf.data "
            f"service: TensorFlow 2.21 reads there, and knows no {scheme}://. Mount or copy the "
            "files, or train in step"
        )
    for feature in source.schema.features:
        if feature.width == RAGGED and feature.name in source.defaults:
            raise DataError(
                f"feature {feature.name!r} has any number of values, and those that stand in for "
                "it cannot be filled in on parameter servers' workers or by tf.data service: write "
                "them to the files, or train in step"
            )
    with open_input(source.files[0]) as file:
        packing = _TF_COMPRESSION[detect_compression(file)]
    files = tf.data.Dataset.from_tensor_slices(list(source.files))
    return files.interleave(
        lambda path: tf.data.TFRecordDataset(path, packing),
        cycle_length=min(len(source.files), 16),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _parse(source: RecordSource, messages: Any, signature: dict[str, Any]) -> dict[str, Any]:
    """Messages as the tensors that the pipeline gives in this process."""
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
