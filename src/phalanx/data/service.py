"""Reading and preparing data on other machines, with tf.data service.

A dispatcher hands out the files' parts to data workers; training tasks take finished batches from
them. Every example comes once an epoch; there is no order, and so no position to take up again.

    run_dispatcher(5050, stop)                                  # on one machine
    run_data_worker("dispatcher:5050", 5051, stop)              # on each data worker
    served_dataset(pipeline, "dispatcher:5050", batch_size=128) # in each training task
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from phalanx.data.sources import RecordSource
from phalanx.data.tensors import parse_spec
from phalanx.errors import DataError
from phalanx.records.compression import Compression, detect_compression
from phalanx.records.storage import open_input

if TYPE_CHECKING:
    from phalanx.data.pipeline import Pipeline

_SHUFFLED = 10_000
_TF_COMPRESSION = {Compression.NONE: "", Compression.GZIP: "GZIP", Compression.ZLIB: "ZLIB"}


def run_dispatcher(port: int, stop: threading.Event, *, work_dir: str | None = None) -> None:
    """Be the dispatcher until `stop` is set; with a `work_dir` it survives its own restart."""
    service = tf.data.experimental.service
    config = service.DispatcherConfig(
        port=port, work_dir=work_dir, fault_tolerant_mode=work_dir is not None
    )
    # Kept in a name: the server ends when nothing refers to it any more.
    server = service.DispatchServer(config)
    stop.wait()
    del server


def run_data_worker(
    dispatcher: str, port: int, stop: threading.Event, *, host: str = "localhost"
) -> None:
    """Be a data worker until `stop` is set; `host` is the name by which training tasks reach it."""
    service = tf.data.experimental.service
    config = service.WorkerConfig(
        dispatcher_address=dispatcher, worker_address=f"{host}:{port}", port=port
    )
    server = service.WorkerServer(config)
    stop.wait()
    del server


def served_dataset(
    pipeline: Pipeline,
    dispatcher: str,
    batch_size: int,
    *,
    job: str = "training",
    epochs: int | None = None,
    prefetch: int | None = None,
) -> tf.data.Dataset:
    """A pipeline's batches, made by the data workers; tasks that name the same `job` share them.

    The pipeline must read TFRecord files that the data workers see under the same paths. With a seed
    the examples are shuffled.
    """
    if not isinstance(pipeline.source, RecordSource):
        kind = type(pipeline.source).__name__
        raise DataError(f"tf.data service reads TFRecord files, not a {kind}: write some first")
    dataset = _record_dataset(pipeline.source, pipeline.seed)
    dataset = dataset.repeat(epochs)
    dataset = dataset.batch(batch_size, drop_remainder=epochs is None)
    dataset = dataset.map(_parser(pipeline.source), num_parallel_calls=tf.data.AUTOTUNE)
    numbered = dataset.enumerate().map(lambda number, batch: (batch, number))
    served = pipeline.apply(numbered).apply(
        tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            service=dispatcher if "://" in dispatcher else f"grpc://{dispatcher}",
            job_name=job,
        )
    )
    return served.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)


def _record_dataset(source: RecordSource, seed: int | None) -> tf.data.Dataset:
    with open_input(source.files[0]) as file:
        packing = _TF_COMPRESSION[detect_compression(file)]
    files = tf.data.Dataset.from_tensor_slices(list(source.files))
    if seed is not None:
        files = files.shuffle(len(source.files), seed=seed)
    dataset = files.interleave(
        lambda path: tf.data.TFRecordDataset(path, packing),
        cycle_length=min(len(source.files), 16),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=seed is None,
    )
    return dataset if seed is None else dataset.shuffle(_SHUFFLED, seed=seed)


def _parser(source: RecordSource) -> Any:
    spec = parse_spec(source.schema, source.defaults)

    def parse(messages: Any) -> dict[str, Any]:
        if isinstance(spec, tuple):
            context, steps, _ = tf.io.parse_sequence_example(messages, *spec)
            features = {**context, **steps}
        else:
            features = tf.io.parse_example(messages, spec)
        for name, dtype in source.raw.items():
            features[name] = tf.io.decode_raw(features[name], tf.as_dtype(dtype))
        return features

    return parse
