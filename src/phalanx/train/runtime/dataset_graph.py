"""What the graph of a dataset tells: whether it can be sent, and in which order it shuffles."""

from collections.abc import Callable

import tensorflow as tf

from phalanx.train.types import Dataset, GraphDef

# A larger dataset is not sent to every worker.
_MAX_BYTES = 32 * 2**20


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
    return graph.ByteSize() <= _MAX_BYTES and not calls_python(graph)


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
