"""Reading and preparing data on other machines, with tf.data service.

A dispatcher hands out the files' parts to data workers; training tasks take finished batches from
them. Every example comes once an epoch; there is no order, and so no position to take up again.

    run_dispatcher(5050, stop)                                  # on one machine
    run_data_worker("dispatcher:5050", 5051, stop)              # on each data worker
    served_dataset(pipeline, "dispatcher:5050", batch_size=128) # in each training task
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import tensorflow as tf

from phalanx.data.portable import portable_dataset
from phalanx.data.record_source import RecordSource
from phalanx.data.sharding import Share
from phalanx.errors import DataError

if TYPE_CHECKING:
    from phalanx.data.pipeline import Pipeline


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

    The pipeline must read TFRecord files that the data workers see under the same paths. With a
    seed the examples are shuffled.
    """
    if not isinstance(pipeline.source, RecordSource):
        kind = type(pipeline.source).__name__
        raise DataError(f"tf.data service reads TFRecord files, not a {kind}: write some first")
    dataset = portable_dataset(
        pipeline, batch_size, share=Share(), epochs=epochs, drop_remainder=epochs is None
    )
    served = dataset.apply(
        tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            service=dispatcher if "://" in dispatcher else f"grpc://{dispatcher}",
            job_name=job,
        )
    )
    return served.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)
