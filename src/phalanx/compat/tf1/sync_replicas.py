"""tf.train.SyncReplicasOptimizer, with sessions that survive the loss of a parameter server."""

import logging
import threading
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.lost_peers import is_lost_peer, recoverable

LOG = logging.getLogger("phalanx")


class SyncReplicasOptimizer(tf.train.SyncReplicasOptimizer):
    """Averages the gradients of all tasks in each step.

    The tasks of a step wait for tokens in a queue on a parameter server. TensorFlow's own hook
    closes this queue whenever the chief's session ends, also when the session is only created
    anew because a parameter server was lost: then the workers end as if training were done.
    """

    def get_chief_queue_runner(self) -> "TokenQueueRunner":
        """Return what applies the gradients on the chief, for a `tf.train.Supervisor`."""
        return TokenQueueRunner(super().get_chief_queue_runner())

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> "SyncReplicasHook":
        """Return the hook that every task of synchronous training needs.

        Args:
            is_chief: Whether this task applies the gradients.
            num_tokens: How many tokens to begin with; by default one for each gradient of a step.
        """
        return SyncReplicasHook(self, is_chief=is_chief, num_tokens=num_tokens)


class TokenQueueRunner(tf.train.QueueRunner):
    """Applies the gradients of each step, and gives each task a token for the next.

    Args:
        runner: TensorFlow's own queue runner.
    """

    def __init__(self, runner: Any) -> None:
        super().__init__(
            runner.queue, runner.enqueue_ops, runner.close_op, runner.cancel_op,
            runner.queue_closed_exception_types,
        )  # fmt: skip
        self.is_in_run = False
        """Whether the session is in a run: if the run fails, the chief makes another session."""

    def create_threads(
        self, sess: Any, coord: Any = None, daemon: bool = False, start: bool = False
    ) -> list[threading.Thread]:
        """Return the threads of a session; the coordinator waits for the last only.

        Only the end of the session wakes the others when they wait for gradients.
        """
        if coord is None:
            threads: list[threading.Thread] = super().create_threads(sess, None, daemon, start)
            return threads
        threads = [
            threading.Thread(target=self._apply, args=(sess, coord, op), daemon=True)
            for op in self.enqueue_ops
        ]
        threads.append(threading.Thread(target=self._close, args=(sess, coord), daemon=daemon))
        coord.register_thread(threads[-1])
        if start:
            for thread in threads:
                thread.start()
        return threads

    def _apply(self, session: Any, coord: Any, op: Any) -> None:
        """Apply the gradients of each step when all are there, until the session ends."""
        try:
            apply = recoverable(session.make_callable(op))
            while not coord.should_stop():
                apply()
        except Exception as error:
            if coord.should_stop():
                return
            coord.request_stop(error)
            if is_lost_peer(error):
                # The main thread may wait for a token that nobody will give it.
                session.close()

    def _close(self, session: Any, coord: Any) -> None:
        """Close the queue of tokens when training ends, so that the workers end too.

        If a run has failed, the chief creates another session, and the workers wait for it.
        """
        coord.wait_for_stop()
        try:
            coord.raise_requested_exception()
            if not self.is_in_run:
                session.run(self.cancel_op)
        except Exception as error:
            LOG.debug("the queue of tokens stays open: %s", error)


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

    def begin(self) -> None:
        """Take the operations from the graph, which will be finalized."""
        # It raises ValueError if apply_gradients was not called.
        self._runner = self._optimizer.get_chief_queue_runner()
        self._ready_op = self._optimizer.ready_for_local_init_op
        self._init_ops = [self._optimizer.local_step_init_op]
        if self._is_chief:
            tokens = self._optimizer.get_init_tokens_op(self._num_tokens)
            self._init_ops = [self._optimizer.chief_init_op, tokens]

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
            self._runner.create_threads(session, coord, daemon=True, start=True)

    def before_run(self, run_context: Any) -> None:
        """Note that a run begins."""
        self._runner.is_in_run = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Note that the run has succeeded."""
        self._runner.is_in_run = False
