"""tf.train.SyncReplicasOptimizer, with sessions that survive the loss of a parameter server."""

import logging
import threading
from typing import Any

import tensorflow.compat.v1 as tf

LOG = logging.getLogger("phalanx")

_LOST_PEER = (tf.errors.AbortedError, tf.errors.UnavailableError)
"""The errors after which a `MonitoredSession` creates its session anew."""


class SyncReplicasOptimizer(tf.train.SyncReplicasOptimizer):
    """Averages the gradients of all tasks in each step.

    The tasks of a step wait for tokens in a queue on a parameter server. TensorFlow's own hook
    closes this queue whenever the chief's session ends, also when the session is only created
    anew because a parameter server was lost: then the workers end as if training were done.
    """

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> "SyncReplicasHook":
        """Return the hook that every task of synchronous training needs.

        Args:
            is_chief: Whether this task applies the gradients.
            num_tokens: How many tokens to begin with; by default one for each gradient of a step.
        """
        return SyncReplicasHook(self, is_chief=is_chief, num_tokens=num_tokens)


class SyncReplicasHook(tf.train.SessionRunHook):
    """Initializes synchronous training in each session, and applies the gradients on the chief.

    Args:
        optimizer: The optimizer.
        is_chief: Whether this task applies the gradients.
        num_tokens: How many tokens to begin with.
    """

    def __init__(
        self, optimizer: SyncReplicasOptimizer, *, is_chief: bool, num_tokens: int
    ) -> None:
        self._optimizer = optimizer
        self._is_chief = is_chief
        self._num_tokens = num_tokens
        self._is_in_run = False

    def begin(self) -> None:
        """Take the operations from the graph, which will be finalized."""
        # It raises ValueError if apply_gradients was not called.
        runner = self._optimizer.get_chief_queue_runner()
        self._ready_op = self._optimizer.ready_for_local_init_op
        if not self._is_chief:
            self._init_ops = [self._optimizer.local_step_init_op]
            return
        tokens = self._optimizer.get_init_tokens_op(self._num_tokens)
        self._init_ops = [self._optimizer.chief_init_op, tokens]
        (self._apply_op,) = runner.enqueue_ops
        self._close_op = runner.cancel_op

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Set the step of this session and, on the chief, begin to apply gradients."""
        missing = session.run(self._ready_op)
        if len(missing):
            raise RuntimeError(
                "SyncReplicasOptimizer needs variables that are not initialized: "
                + ", ".join(name.decode() for name in missing)
            )
        for op in self._init_ops:
            session.run(op)
        if self._is_chief:
            # The coordinator waits for the threads that it knows. It does not know the first: only
            # the end of the session wakes it when it waits for gradients.
            threading.Thread(target=self._apply, args=(session, coord), daemon=True).start()
            close = threading.Thread(target=self._close, args=(session, coord), daemon=True)
            coord.register_thread(close)
            close.start()

    def before_run(self, run_context: Any) -> None:
        """Note that a run begins."""
        self._is_in_run = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Note that the run has succeeded."""
        self._is_in_run = False

    def _apply(self, session: Any, coord: Any) -> None:
        """Apply the gradients of each step when all are there, until the session ends."""
        try:
            apply = session.make_callable(self._apply_op)
            while not coord.should_stop():
                apply()
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            coord.request_stop(error)
            if isinstance(error, _LOST_PEER):
                # The main thread may wait for a token that nobody will give it.
                session.close()

    def _close(self, session: Any, coord: Any) -> None:
        """Close the queue of tokens when training ends, so that the workers end too.

        If a run has failed, the chief creates another session, and the workers wait for it.
        """
        coord.wait_for_stop()
        try:
            coord.raise_requested_exception()
            if not self._is_in_run:
                session.run(self._close_op)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            LOG.debug("the queue of tokens stays open: %s", error)
