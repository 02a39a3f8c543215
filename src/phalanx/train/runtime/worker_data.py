"""Worker data: which datasets can be sent to a worker, and how a worker serves itself the others.

With parameter servers, the chief sends what its workers run as a graph of TensorFlow operations. A
dataset that calls Python or holds large arrays cannot be sent that way. So each worker calls
`train_data` itself and serves the dataset, by the tf.data service, to the function that the chief
sends: from this process to this process. The address of the service is in a file that only this
process has, so that the function finds a restarted worker's data, too. Into another file the
function writes which pass over the data it begins: a shuffle has another order in each pass.
"""

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from phalanx.train.runtime.control_channel import (
    WORKER_DATA,
    WORKER_DATA_PASS,
    duplicate_to,
    path_of,
)
from phalanx.train.types import Dataset, ElementSpec, GraphDef, Server, Tensor

MakeData = Callable[[int], Dataset]
"""Makes the data of a run that has completed so many passes over it."""

# A larger dataset is not sent to every worker.
_MAX_BYTES = 32 * 2**20

# Neither server can stop while functions read from it: they live as long as the process.
_SERVERS: list[Server] = []


def read_graph(data: Dataset) -> GraphDef:
    """Return the operations of a dataset; not inside a tf.function."""
    graph = tf.compat.v1.GraphDef()
    [variant] = tf.nest.flatten(data, expand_composites=True)
    graph.ParseFromString(tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy())
    return graph


def calls_python(graph: GraphDef) -> bool:
    """Whether an operation of a graph, or of its functions, calls Python."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return any("PyFunc" in node.op for node in nodes)


def is_served(data: Dataset) -> bool:
    """Whether a tf.data service decides which batches a dataset has: it has no position."""
    try:
        graph = read_graph(data)
    except tf.errors.OpError:
        return False  # It is too large to be a graph, or calls Python.
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return any(node.op.startswith("DataServiceDataset") for node in nodes)


def is_sendable(graph: GraphDef) -> bool:
    """Whether the operations of a dataset can be sent: no Python, and not too large."""
    return graph.ByteSize() <= _MAX_BYTES and not calls_python(graph)


def can_be_sent(data: Dataset, make: Callable[[], Dataset] | None = None) -> bool:
    """Whether a dataset can be sent to another process: it calls no Python and is not too large.

    What is sent is the graph of a function that calls `make`. A pipeline of phalanx.data calls
    Python when it is made eagerly, but uses only TensorFlow's operations inside a function.
    """
    try:
        graph = read_graph(data)
    except tf.errors.OpError:
        return False
    if graph.ByteSize() > _MAX_BYTES:
        return False
    return not calls_python(graph) or (make is not None and _can_be_sent_by_function(make))


def _can_be_sent_by_function(make: Callable[[], Dataset]) -> bool:
    function = tf.function(lambda: tf.data.experimental.to_variant(make()), autograph=False)
    try:
        graph = function.get_concrete_function().graph.as_graph_def()
    except Exception:  # The user's code may raise anything; the worker then calls it itself.
        return False
    return is_sendable(graph)


def shuffles_before_shard(graph: GraphDef) -> bool:
    """Whether a shuffle precedes a shard.

    Each worker then shuffles in a different order and takes every n-th element of that: in an
    epoch, several workers read the same example, and nobody reads some others.
    """
    nodes = {node.name: node for node in graph.node}
    stack = [name for name, node in nodes.items() if node.op.startswith("ShardDataset")]
    visited = set[str]()
    while stack:
        name = stack.pop().partition(":")[0].lstrip("^")
        if name in visited or name not in nodes:
            continue
        visited.add(name)
        if nodes[name].op.startswith(("ShuffleDataset", "ShuffleAndRepeatDataset")):
            return True
        stack += nodes[name].input
    return False


class _Passes:
    """The dataset of each pass that is read. A dataset takes its next order by itself."""

    def __init__(self, make: MakeData, data: Dataset) -> None:
        self._make = make
        self._data = data
        self._opening = ""
        self._next = 0

    def open(self) -> Tensor:
        """Return the dataset of the pass that the chief asks for, or of the one after the last."""
        opening, number = Path(path_of(WORKER_DATA_PASS)).read_text().split()
        wanted = self._next if opening == self._opening else int(number)
        if wanted != self._next:
            self._data = self._make(wanted)
        self._opening, self._next = opening, wanted + 1
        return tf.data.experimental.to_variant(self._data)


def serve_worker_data(data: Dataset, make: MakeData, name: str = "train") -> None:
    """Serve a dataset to the functions that run in this process and ask for this name.

    `make` is for runs that have completed passes before this process was started.
    """
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    spec, passes = data.element_spec, _Passes(make, data)
    # The service would make the dataset anew for each pass, and each would have the first order.
    served = tf.data.Dataset.range(1).flat_map(
        lambda _: tf.data.experimental.from_variant(
            tf.py_function(passes.open, [], tf.variant), spec
        )
    )
    service.register_dataset(dispatcher.target, served, compression=None, dataset_id=name)
    for descriptor, text in ((WORKER_DATA, address), (WORKER_DATA_PASS, "")):
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.flush()
            duplicate_to(file.fileno(), descriptor)
    _SERVERS.extend([dispatcher, worker])


def read_worker_data(element_spec: ElementSpec, name: str = "train", passes: int = 0) -> Dataset:
    """Return the dataset that the process that runs this operation serves.

    Each time it is read it has the order of the next pass, from the one after `passes` on.
    """
    flat = [
        (spec.dtype, spec.shape) if isinstance(spec, tf.TensorSpec) else (tf.variant, None)
        for spec in tf.nest.flatten(element_spec)
    ]
    identity = tf.function(lambda element: element).get_concrete_function(
        tf.TensorSpec([], tf.variant)
    )
    told = tf.io.write_file(path_of(WORKER_DATA_PASS), f"{uuid.uuid4().hex} {passes}")
    with tf.control_dependencies([told]):
        address = tf.io.read_file(path_of(WORKER_DATA))
    variant = tf.raw_ops.DataServiceDatasetV4(
        dataset_id=name,
        processing_mode="",  # Without sharding.
        address=address,
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
