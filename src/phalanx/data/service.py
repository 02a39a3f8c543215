"""Reading and preparing data on other machines, with tf.data service.

A dispatcher hands out the files' parts to data workers; training tasks take finished batches from
them. Every example comes once an epoch; there is no order, and so no position to take up again.

    phalanx run --workers 1 --data-workers 2 train.py              # starts all of them
    pipeline.dataset(128, epochs=1, service=context.data_service)  # in train.py
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

import tensorflow as tf

from phalanx.cluster import Cluster, Role, Task, TFConfig
from phalanx.cluster.preflight import check_peers
from phalanx.data.portable import portable_dataset
from phalanx.data.record_source import RecordSource
from phalanx.data.sharding import Share
from phalanx.errors import DataError

if TYPE_CHECKING:
    from phalanx.data.pipeline import Pipeline

WAIT_SECONDS = 300.0


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
    # TensorFlow would wait for it as well, but deaf to signals, with all of Python standing still.
    _wait_for_dispatcher(dispatcher, WAIT_SECONDS)
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
    epochs: int | None = None,
    drop_remainder: bool = False,
    prefetch: int | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> tf.data.Dataset:
    """A pipeline's batches, made by the data workers; tasks that read the same files share them.

    The pipeline must read TFRecord files that the data workers see under the same paths. With a
    seed the examples are shuffled. The first iteration of each task is one pass for all of them,
    the second another.
    """
    if not isinstance(pipeline.source, RecordSource):
        kind = type(pipeline.source).__name__
        raise DataError(f"tf.data service reads TFRecord files, not a {kind}: write some first")
    _wait_for_dispatcher(dispatcher, wait_seconds)
    is_fixed = epochs is None or drop_remainder
    dataset = portable_dataset(
        pipeline, batch_size, share=Share(), epochs=epochs, drop_remainder=is_fixed
    )
    served = dataset.apply(
        tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            service=dispatcher if "://" in dispatcher else f"grpc://{dispatcher}",
            job_name=_name_job(pipeline.source, batch_size),
        )
    )
    return served.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)


def _wait_for_dispatcher(address: str, seconds: float) -> None:
    """TensorFlow itself would try for an hour, without a word."""
    place = address.rpartition("://")[2]
    if not place.rpartition(":")[2].isdecimal():
        raise DataError(f"{address!r} is not the address of a dispatcher: write host:port")
    dispatcher = Cluster({Task(Role.DISPATCHER): place})
    [report] = check_peers(TFConfig(dispatcher), timeout=seconds, wait=True)
    if report.reason:
        raise DataError(f"gave up after {seconds:.0f} s waiting for {report}")


def _name_job(source: RecordSource, batch_size: int) -> str:
    """The same for all tasks that read the same, and another for other data."""
    text = "\n".join([*source.files, str(batch_size)])
    return f"phalanx-{zlib.crc32(text.encode()):08x}"
