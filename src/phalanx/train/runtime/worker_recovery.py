"""How the chief loses workers of a ps cluster, and takes them back.

TensorFlow's `ClusterCoordinator` has no public way to change that, so its private methods are
replaced: on its objects, of which a program has one, however many runs it has.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from phalanx.train.runtime.connections import PEER_SECONDS
from phalanx.train.runtime.control_channel import is_listening, wait_for_answer
from phalanx.train.types import ClusterCoordinator, RemoteValue

LOG = logging.getLogger("phalanx")

_RETRY_SECONDS = 0.5
_LOST_SERVER = re.compile(
    "GRPC error information from remote target /job:ps/replica:0/task:([0-9]+)"
)


class WorkerRecovery:
    """Takes back each worker that was lost, whether others are still lost or not.

    Args:
        coordinator: The coordinator of the cluster.
        workers: The addresses of the workers, in the order of their numbers.
        servers: The addresses of the parameter servers.
    """

    def __init__(
        self, coordinator: ClusterCoordinator, workers: Sequence[str], servers: Sequence[str]
    ) -> None:
        self._cluster = coordinator._cluster
        self._addresses = list(workers)
        self._servers = list(servers)
        self._absent: frozenset[int] = frozenset()
        self._prepare: Callable[[int], None] = lambda number: None
        # The threads of workers whose call another worker will make.
        self._interrupted: set[int] = set()
        self._doubt_lost_servers()
        self._reconnect_to_those_that_listen()

    def _doubt_lost_servers(self) -> None:
        """Believe a worker that has lost a parameter server only if the server is lost for all.

        By default, the third such report ends the run, even if they are days apart and only the
        network of one worker was cut.
        """
        is_ignored = type(self._cluster)._record_and_ignore_transient_ps_failure

        def is_transient(error: BaseException) -> bool:
            named = {int(number) for number in _LOST_SERVER.findall(str(error))}
            if isinstance(error, tf.errors.UnavailableError) and named:
                servers = [self._servers[number] for number in named]
                if all(wait_for_answer(address, PEER_SECONDS) for address in servers):
                    LOG.info("a worker has lost its connection to a parameter server, and retries")
                    return True
            return bool(is_ignored(self._cluster, error))

        self._cluster._record_and_ignore_transient_ps_failure = is_transient

    def _reconnect_to_those_that_listen(self) -> None:
        """Let the coordinator connect to lost workers without those that do not listen.

        While TensorFlow tries to connect to a host that is cut off, no worker can train.
        """
        from tensorflow.python.eager import context  # noqa: PLC0415

        eager = context.context()
        update = type(eager).update_server_def.__get__(eager)

        def wait_and_update(server_def: Any, *arguments: Any, **settings: Any) -> None:
            # The coordinator calls this in a thread of its own, and would wait as long as that.
            while not any(is_listening(self._addresses[number]) for number in self._find_lost()):
                time.sleep(_RETRY_SECONDS)
            absent = {n for n, address in enumerate(self._addresses) if not is_listening(address)}
            present = type(server_def)()
            present.CopyFrom(server_def)
            for job in present.cluster.job:
                if job.name == "worker":
                    for number in absent:
                        del job.tasks[number]
            update(present, *arguments, **settings)
            self._absent = frozenset(absent)

        eager.update_server_def = wait_and_update
        for number, worker in enumerate(self._cluster.workers):
            worker._on_worker_recovery = partial(self._recover, number, worker)

    def _find_lost(self) -> list[int]:
        """Return the workers that the coordinator has lost, and has not taken back."""
        workers = enumerate(self._cluster.workers)
        return [number for number, worker in workers if worker._is_dead_with_error]

    def _recover(self, number: int, worker: Any) -> None:
        """Make the iterators of a worker again when it is back, in the thread of the worker.

        The coordinator believes that all lost workers are back when one of them is.
        """
        while number in self._absent:
            self._cluster.failure_handler._cluster_due_for_update_or_finish.set()
            time.sleep(_RETRY_SECONDS)
        self._interrupted.discard(threading.get_ident())
        self._prepare(number)
        type(worker)._on_worker_recovery(worker)

    def watch(
        self, on_lost_call: Callable[[RemoteValue], None], on_lost_worker: Callable[[], None]
    ) -> None:
        """Call a function when a worker is lost: one if it runs a call, with the call's result.

        The coordinator puts such a call back into its queue, for any worker that is free. The other
        function is called for a worker that is lost while it opens its data.
        """
        for worker in self._cluster.workers:
            abort = type(worker)._on_resource_closure_failure.__get__(worker)

            def note_and_abort(
                error: BaseException, abort: Callable[[BaseException], None] = abort
            ) -> None:
                on_lost_worker()
                abort(error)

            worker._on_resource_closure_failure = note_and_abort

        # First, since another worker may take the call as soon as it is in the queue.
        self._before_put_back(lambda call: on_lost_call(call._output_remote_value_ref()))

    def _before_put_back(self, note: Callable[[Any], None]) -> None:
        """Call a function before a call is given to any worker that is free."""
        closures = self._cluster.closure_queue
        put_back = type(closures).put_back.__get__(closures)

        def note_and_put_back(call: Any) -> None:
            note(call)
            put_back(call)

        closures.put_back = note_and_put_back

    def prepare_data(self, prepare: Callable[[int], None]) -> None:
        """Call a function before a worker opens its data again.

        A worker does so when it is back, and also when it has only lost a connection: its iterator
        is then behind batches that were not used.
        """
        self._prepare = prepare
        self._before_put_back(lambda call: self._interrupted.add(threading.get_ident()))
        for number, worker in enumerate(self._cluster.workers):
            worker._process_closure = partial(self._process, number, worker)

    def _process(self, number: int, worker: Any, call: Any) -> None:
        """Run a call of a worker, in the thread of the worker."""
        type(worker)._process_closure(worker, call)
        while threading.get_ident() in self._interrupted:
            try:
                self._recover(number, worker)
            except tf.errors.OpError as error:
                self._interrupted.add(threading.get_ident())
                LOG.debug("the data of a worker was not opened again: %s", error)
                time.sleep(_RETRY_SECONDS)
