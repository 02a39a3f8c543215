"""tf.contrib.layers.utils: the outputs of layers by name."""

from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib.layers.scoped import collect_named_outputs

__all__ = ["collect_named_outputs", "convert_collection_to_dict", "last_dimension"]


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> dict[str, Any]:
    """Return the tensors of a collection by the scopes of their layers.

    Args:
        collection: The name of the collection.
        clear_collection: Whether to empty it.

    Returns:
        The tensors by name.
    """
    tensors = tf.get_collection(collection)
    if clear_collection:
        tf.get_default_graph().clear_collection(collection)
    return {alias: each for each in tensors for alias in getattr(each, "aliases", [each.op.name])}


def last_dimension(shape: Any, min_rank: int = 1) -> int | None:
    """Return the last dimension of a shape.

    Args:
        shape: A `tf.TensorShape`.
        min_rank: The fewest dimensions it must have.

    Returns:
        The dimension; None if it is unknown.
    """
    sizes = shape.with_rank_at_least(min_rank).as_list()
    last: int | None = sizes[-1]
    return last
