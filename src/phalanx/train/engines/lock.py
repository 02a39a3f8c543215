"""A lock around operations on variables of a parameter server."""

import uuid
from collections.abc import Callable

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor


class Lock:
    """A lock on the current device, held until every operation of a function has run.

    TensorFlow releases a `CriticalSection` as soon as the values that its function returns are
    computed. Updates that these values do not depend on could then run at the same time as those of
    another worker.
    """

    def __init__(self) -> None:
        # Locks of one name are one, also that of an earlier run on this server.
        self._section = tf.CriticalSection(shared_name=f"phalanx-lock-{uuid.uuid4().hex}")

    @unconverted
    def run(self, function: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Run a function that returns at least one tensor, inside of a `tf.function`."""

        def run_all() -> list[Tensor]:
            graph = tf.compat.v1.get_default_graph()
            before = len(graph.get_operations())
            results = function()
            created = graph.get_operations()[before:]
            with tf.control_dependencies([op for op in created if op.op_def.is_stateful]):
                return [tf.identity(result) for result in results]

        return list(self._section.execute(run_all))
