"""Sessions of between-graph training: how tasks start, wait, recover and end."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.cluster.spec import split_address
from phalanx.compat.tf1.lost_peers import LostPeerHook, recoverable
from phalanx.errors import PeerError
from phalanx.train.runtime.exposure import check_guard

LOG = logging.getLogger("phalanx")

STOP_GRACE_SECONDS = 5
"""How long a session waits for its threads; TensorFlow's 120 s only delay a synchronous end."""
RECOVERY_SECONDS = 1
"""How often a worker asks whether the chief has initialized the variables; TensorFlow: 30 s."""
STEP_SECONDS = 7200
"""How long a task waits for its peers in a step, as long as for the chief to begin."""
_LINGER_SECONDS = 60.0
_SILENCE_SECONDS = 600.0
_PROBE_SECONDS = 5.0
_REPORT_SECONDS = 10.0
_REPORT_LIMIT_SECONDS = 60.0
_POLL_SECONDS = 0.5


def limit_waits(master: str, config: Any) -> Any:
    """Return the settings of a session, which on a cluster has a limit for each run.

    In synchronous training, tasks wait for each other: without a limit, they would wait for ever
    for a chief that has failed and is not started again.

    Args:
        master: The target of the session; empty for a session in this process.
        config: The `tf.ConfigProto` of the program, or None. Its own limit is kept.
    """
    if not master or (config is not None and config.operation_timeout_in_ms):
        return config
    limited = tf.ConfigProto()
    if config is not None:
        limited.CopyFrom(config)
    limited.operation_timeout_in_ms = STEP_SECONDS * 1000
    return limited


class WorkerSessionCreator(tf.train.SessionCreator):
    """Creates the session of a worker as soon as the chief has initialized the variables.

    TensorFlow's own asks every 30 s, in which a chief can finish a short run alone.

    Args:
        scaffold: The `tf.train.Scaffold` of the graph.
        master: The target of the session.
        config: The `tf.ConfigProto` of the session.
        max_wait_secs: How long to wait for the chief.
    """

    def __init__(self, scaffold: Any, master: str, config: Any, max_wait_secs: float) -> None:
        self._scaffold = scaffold
        self._master = master
        self._config = config
        self._max_wait_secs = max_wait_secs

    @recoverable
    def create_session(self) -> Any:
        """Wait for the chief, and return the session."""
        scaffold = self._scaffold
        scaffold.finalize()
        manager = tf.train.SessionManager(
            local_init_op=scaffold.local_init_op,
            local_init_feed_dict=scaffold.local_init_feed_dict,
            ready_op=scaffold.ready_op,
            ready_for_local_init_op=scaffold.ready_for_local_init_op,
            graph=tf.get_default_graph(),
            recovery_wait_secs=RECOVERY_SECONDS,
        )
        config = limit_waits(self._master, self._config)
        return manager.wait_for_session(
            self._master, config=config, max_wait_secs=self._max_wait_secs
        )


@dataclass
class ChiefSessionCreator(tf.train.SessionCreator):
    """Restores the newest checkpoint that can be read, also when a session is made again."""

    scaffold: Any
    master: str
    config: Any
    find_checkpoint: Callable[[], str | None]

    @recoverable
    def create_session(self) -> Any:
        path = self.find_checkpoint()
        session = tf.train.ChiefSessionCreator(
            self.scaffold,
            master=self.master,
            config=limit_waits(self.master, self.config),
            checkpoint_filename_with_path=path,
        ).create_session()
        if path is not None:
            # Otherwise the saver never deletes the checkpoints of earlier sessions.
            state = tf.train.get_checkpoint_state(os.path.dirname(path))  # noqa: PTH120
            known = state.all_model_checkpoint_paths if state is not None else []
            self.scaffold.saver.recover_last_checkpoints(known)
        return session


def make_session_creator(
    scaffold: Any,
    *,
    is_chief: bool,
    master: str,
    config: Any,
    find_checkpoint: Callable[[], str | None],
    max_wait_secs: float = 7200,
) -> Any:
    """Return the creator of a training session: only the chief initializes and restores."""
    if is_chief:
        return ChiefSessionCreator(scaffold, master, config, find_checkpoint)
    return WorkerSessionCreator(scaffold, master, config, max_wait_secs)


def open_session(
    creator: Any, hooks: Sequence[Any], stop_grace_period_secs: float = STOP_GRACE_SECONDS
) -> Any:
    """Return a `MonitoredSession` that recovers from every loss of a peer.

    Args:
        creator: The creator of its sessions.
        hooks: Its hooks.
        stop_grace_period_secs: How long threads may take to end.
    """
    # The first hook also covers what the others run when a session begins.
    every = [LostPeerHook(), *hooks]
    return tf.train.MonitoredSession(creator, every, stop_grace_period_secs=stop_grace_period_secs)


_servers: dict[str, Any] = {}


def ignore_cancelled_threads() -> None:
    """Print no traceback of a queue's thread when its session closes, as at a synchronous end."""
    show = threading.excepthook

    def show_unless_cancelled(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, tf.errors.CancelledError):
            show(args)

    threading.excepthook = show_unless_cancelled


def start_server(config: Any) -> Any:
    """Return the server of this task, which is started once; `config` is a `RunConfig`."""
    name = f"{config.task_type}-{config.task_id}"
    if name not in _servers:
        check_guard()
        ignore_cancelled_threads()
        _servers[name] = tf.train.Server(
            config.cluster_spec,
            job_name=config.task_type,
            task_index=config.task_id,
            config=config.session_config,
            protocol=config.protocol,
        )
    return _servers[name]


def serve_until_end(config: Any) -> None:
    """Serve as a parameter server until the chief and the workers have reported their end.

    TensorFlow tells a parameter server nothing. Each trainer therefore leaves its name in a queue
    on each of them. A worker that says nothing for a minute after the chief's end is not awaited.
    After the first report, nobody is awaited when no task has answered for ten minutes: a chief
    that is started again on another host may need some of them.

    Raises:
        PeerError: No trainer has answered for `session_creation_timeout_secs`.
    """
    server = start_server(config)
    task = config.task_id
    own = tf.ConfigProto(device_filters=[f"/job:ps/task:{task}"], allow_soft_placement=True)
    with tf.Graph().as_default():
        queue = _make_queue(task)
        size, dequeue = queue.size(), queue.dequeue()
        with tf.Session(server.target, config=own) as session:
            LOG.info("ps-%d serves on %s", task, server.target)
            _wait_for_reports(config, lambda: _drain(session, size, dequeue))
    LOG.info("ps-%d ends: training is over", task)


def _drain(session: Any, size: Any, dequeue: Any) -> set[str]:
    return {session.run(dequeue).decode() for _ in range(session.run(size))}


def _wait_for_reports(config: Any, read: Any) -> None:
    expected = set(list_trainers(config.cluster_spec))
    chief = chief_name(config.cluster_spec)
    reported: set[str] = set()
    deadline = None
    last_answer = next_probe = time.monotonic()
    while not expected <= reported:
        time.sleep(_POLL_SECONDS)
        reported |= read()
        if time.monotonic() > next_probe:
            if any(map(_answers, list_trainers(config.cluster_spec).values())):
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > config.session_creation_timeout_secs:
                raise PeerError(
                    f"neither {chief} nor a worker has answered ps-{config.task_id} for "
                    f"{config.session_creation_timeout_secs} s "
                    "(RunConfig.session_creation_timeout_secs): see their logs for why they ended, "
                    "and start them all again"
                )
            next_probe = time.monotonic() + _PROBE_SECONDS
        if chief in reported and deadline is None:
            deadline = time.monotonic() + _LINGER_SECONDS
        is_late = deadline is not None and time.monotonic() > deadline
        are_gone = bool(reported) and time.monotonic() - last_answer > _SILENCE_SECONDS
        if is_late or are_gone:
            LOG.warning("%s did not report its end", ", ".join(sorted(expected - reported)))
            return


def report_end(config: Any, target: str) -> None:
    """Tell every parameter server that this task has finished training."""
    deadline = time.monotonic() + _REPORT_LIMIT_SECONDS
    for task in config.cluster_spec.task_indices("ps"):
        while error := _try_report(config, target, task):
            if time.monotonic() > deadline:
                name = f"{config.task_type}-{config.task_id}"
                LOG.warning("ps-%d could not be told that %s has ended: %s", task, name, error)
                break
            time.sleep(_POLL_SECONDS)


def _try_report(config: Any, target: str, task: int) -> Exception | None:
    """Leave the name of this task on a parameter server; return the error if it does not answer."""
    filters = [f"/job:ps/task:{task}", f"/job:{config.task_type}/task:{config.task_id}"]
    # The time limit also holds for creating the session, which waits for the ps.
    limited = tf.ConfigProto(
        device_filters=filters, operation_timeout_in_ms=int(_REPORT_SECONDS * 1000)
    )
    with tf.Graph().as_default():
        enqueue = _make_queue(task).enqueue(f"{config.task_type}-{config.task_id}")
        try:
            with tf.Session(target, config=limited) as session:
                session.run(enqueue)
        except tf.errors.OpError as error:
            found: Exception = error
            return found
    return None


def _make_queue(task: int) -> Any:
    with tf.device(f"/job:ps/task:{task}"):
        return tf.FIFOQueue(10_000, [tf.string], shapes=[[]], shared_name="phalanx_ended")


def _answers(address: str) -> bool:
    """Whether a server listens at an address."""
    try:
        with socket.create_connection(split_address(address), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False


def list_trainers(cluster_spec: Any) -> dict[str, str]:
    """Return the address of every task that trains, by its name; the chief is the first."""
    jobs = [job for job in ("chief", "master", "worker") if job in cluster_spec.jobs]
    return {
        f"{job}-{task}": cluster_spec.task_address(job, task)
        for job in jobs
        for task in cluster_spec.task_indices(job)
    }


def chief_name(cluster_spec: Any) -> str:
    """Return the name of the task that initializes and saves: worker-0 without a chief."""
    return next(iter(list_trainers(cluster_spec)))
