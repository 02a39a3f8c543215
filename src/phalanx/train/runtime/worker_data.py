"""Data that a worker on parameter servers must make itself: it cannot be sent to it.

The chief sends what its workers run as a graph of TensorFlow operations. A dataset that calls
Python, or that holds large arrays, does not travel that way. So each worker calls `train_data` in
its own process, and serves the dataset to the function it was sent, by the tf.data service: from
this process to this process. Where the service listens is in a file that only this process has,
so that a worker that was started again is found too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.train.runtime.dataset_graph import graph_of

# The file has the same number in every process, so that whoever sends the function knows its path.
_DESCRIPTOR = 1014
_PATH = f"/dev/fd/{_DESCRIPTOR}"
_NAME = "train"

# More than this is not sent to every worker.
_LARGE_BYTES = 32 * 2**20

_SERVING: list[Any] = []


def can_travel(data: Any, make: Callable[[], Any] | None = None) -> bool:
    """Whether a dataset can be sent to another process: it calls no Python, and is not large.

    What is sent is made anew by `make`, inside a function. A pipeline of phalanx.data calls Python
    here, but there is made of TensorFlow's operations alone.
    """
    try:
        graph = graph_of(data)
    except tf.errors.OpError:
        return False
    if graph.ByteSize() > _LARGE_BYTES:
        return False
    return not calls_python(graph) or (make is not None and _travels_from_a_function(make))


def _travels_from_a_function(make: Callable[[], Any]) -> bool:
    function = tf.function(lambda: tf.data.experimental.to_variant(make()), autograph=False)
    try:
        graph = function.get_concrete_function().graph.as_graph_def()
    except Exception:  # The user's own: whatever it is, the worker's process can do without.
        return False
    return graph.ByteSize() <= _LARGE_BYTES and not calls_python(graph)


def calls_python(graph: Any) -> bool:
    """Whether an operation of a graph, or of its functions, is a call of Python."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return any("PyFunc" in node.op for node in nodes)


def serve_worker_data(data: Any) -> None:
    """Serve a dataset to the functions that are run in this process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    service.register_dataset(dispatcher.target, data, compression=None, dataset_id=_NAME)
    with tempfile.TemporaryFile() as file:
        file.write(address.encode())
        file.flush()
        os.dup2(file.fileno(), _DESCRIPTOR, inheritable=False)
    # Neither can be stopped while the functions read: they last as long as the process.
    _SERVING.extend([dispatcher, worker])


def read_worker_data(element_spec: Any) -> Any:
    """What the process that runs this serves: to be traced, and run by a worker."""
    flat = [
        (spec.dtype, spec.shape) if isinstance(spec, tf.TensorSpec) else (tf.variant, None)
        for spec in tf.nest.flatten(element_spec)
    ]
    identity = tf.function(lambda packed: packed).get_concrete_function(
        tf.TensorSpec([], tf.variant)
    )
    variant = tf.raw_ops.DataServiceDatasetV4(
        dataset_id=_NAME,
        processing_mode="",  # All of it.
        address=tf.io.read_file(_PATH),
        protocol="grpc",
        job_name="",
        consumer_index=-1,
        num_consumers=-1,
        max_outstanding_requests=-1,
        iteration_counter=tf.raw_ops.DummyIterationCounter(),
        output_types=[dtype for dtype, _ in flat],
        output_shapes=[tf.TensorShape(shape) for _, shape in flat],
        uncompress=False,
        uncompress_fn=identity,
    )
    return tf.data.experimental.from_variant(variant, element_spec)
