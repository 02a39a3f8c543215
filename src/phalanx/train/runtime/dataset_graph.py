"""Whether a dataset is shuffled before it is shared out."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def graph_of(data: Any) -> Any:
    """The operations that a dataset is made of; outside of a tf.function."""
    graph = tf.compat.v1.GraphDef()
    [variant] = tf.nest.flatten(data, expand_composites=True)
    graph.ParseFromString(tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy())
    return graph


def shuffles_before_shard(graph: Any) -> bool:
    """Whether a shuffle comes before a shard.

    Each worker then shuffles in an order of its own, and takes every n-th of that: some examples
    are read by several workers in an epoch, and some by none.
    """
    nodes = {node.name: node for node in graph.node}
    ahead = [name for name, node in nodes.items() if node.op.startswith("ShardDataset")]
    seen = set[str]()
    while ahead:
        name = ahead.pop().partition(":")[0].lstrip("^")
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        if nodes[name].op.startswith(("ShuffleDataset", "ShuffleAndRepeatDataset")):
            return True
        ahead += nodes[name].input
    return False
