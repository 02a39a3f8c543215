"""slim.prefetch_queue: a queue of batches in front of the towers."""

from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf


class _NamedQueue:
    """A queue whose elements have names, as they were given in a dict."""

    def __init__(self, queue: Any, names: list[str]) -> None:
        self._queue = queue
        self._names = names

    def dequeue(self, name: str | None = None) -> dict[str, Any]:
        """Return the next element."""
        found = self._queue.dequeue(name=name)
        return dict(zip(self._names, found if len(self._names) > 1 else [found], strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def prefetch_queue(
    tensors: Any,
    capacity: int = 8,
    num_threads: int = 1,
    dynamic_pad: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Return a queue that threads fill with the tensors; each tower takes an element of it.

    Args:
        tensors: A list or a dict of tensors, such as a batch of images and one of labels.
        capacity: The largest number of elements.
        num_threads: How many threads fill the queue.
        dynamic_pad: Whether dimensions of the tensors vary.
        shared_name: A name by which several sessions share the queue.
        name: The name of the operations.

    Returns:
        The queue; `dequeue()` returns tensors as they were given.
    """
    names = sorted(tensors) if isinstance(tensors, Mapping) else []
    values = [tensors[name] for name in names] or list(tensors)
    values = [tf.convert_to_tensor(each) for each in values]
    with tf.name_scope(name, "prefetch_queue", values):
        kind = tf.PaddingFIFOQueue if dynamic_pad else tf.FIFOQueue
        queue = kind(
            capacity,
            [each.dtype for each in values],
            [each.shape for each in values],
            shared_name=shared_name,
            name="fifo_queue",
        )
        fill = queue.enqueue(values)
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [fill] * num_threads))
        filled = tf.cast(queue.size(), tf.float32) / capacity
        tf.summary.scalar(f"fraction_of_{capacity}_full", filled)
    return _NamedQueue(queue, names) if names else queue
