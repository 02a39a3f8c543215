"""Reading and preparing data on other machines with tf.data service.

A dispatcher assigns parts of the files to data workers, and training tasks fetch batches from them.
Every example is read once in an epoch, in no defined order, so that a run cannot resume at an exact
position.

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
from phalanx.data.graph_dataset import graph_dataset
from phalanx.data.record_source import RecordSource
from phalanx.data.sharding import Share
from phalanx.errors import DataError

if TYPE_CHECKING:
    from phalanx.data.pipeline import Pipeline

WAIT_SECONDS = 300.0


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
    pipeline: Pipeline,
    dispatcher: str,
    batch_size: int,
    *,
    epochs: int | None = None,
    drop_remainder: bool = False,
    prefetch: int | None = None,
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
    served = dataset.apply(
        tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            service=dispatcher if "://" in dispatcher else f"grpc://{dispatcher}",
            job_name=_name_job(pipeline.source, batch_size),
        )
    )
    return served.prefetch(tf.data.AUTOTUNE if prefetch is None else prefetch)


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
