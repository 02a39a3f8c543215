"""The other tasks of the cluster: wait for them, and run a server for the chief."""

import contextlib
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import tensorflow as tf

from phalanx.cluster import Cluster, Role, Task, TFConfig
from phalanx.cluster.job_environment import read_grace, will_be_restarted
from phalanx.cluster.preflight import check_peers
from phalanx.cluster.spec import split_address
from phalanx.errors import Interrupted, PeerError, PhalanxError, TrainingError
from phalanx.guard.library import ANY
from phalanx.guard.own_address import find_own_address
from phalanx.train.config import RunConfig
from phalanx.train.runtime.connections import PEER_SECONDS
from phalanx.train.runtime.control_channel import Answer, ControlChannel, is_listening, probe, send
from phalanx.train.runtime.messages import Message, MessageType
from phalanx.train.runtime.signals import catch_sigterm
from phalanx.train.runtime.topology import Topology, job_and_index, ps_jobs
from phalanx.train.types import Server

LOG = logging.getLogger("phalanx")

_PROBE_SECONDS = 2.0
_LOST_SECONDS = 10.0
_GRACE_SECONDS = 60.0

# A TensorFlow server cannot be stopped: it lives as long as the process.
_SERVERS: list[Server] = []


def wait_for_peers(topology: Topology, seconds: float) -> None:
    """Wait until every other task answers; log and raise which ones do not."""
    config = TFConfig(topology.cluster, topology.task)
    deadline = time.monotonic() + seconds
    reports = check_peers(config, timeout=min(5.0, seconds), wait=True, answers=True)
    while missing := [report for report in reports if report.reason]:
        left = deadline - time.monotonic()
        names = "; ".join(str(report) for report in missing)
        if left <= 0.1:
            raise PeerError(f"gave up after {seconds:.0f} s waiting for {names}")
        LOG.info("waiting for %s (%.0f s left)", names, left)
        reports = check_peers(config, timeout=min(10.0, left), wait=True, answers=True)


@contextlib.contextmanager
def accept_connections(cluster: Cluster, task: Task) -> Iterator[None]:
    """Listen at this task's address until TensorFlow does, so that peers find it."""
    hosts = [split_address(address)[0] for address in cluster.addresses.values()]
    host, port = split_address(cluster.addresses[task])
    own = find_own_address(host, hosts).address
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    try:
        listener = socket.create_server(("" if own == ANY else own, port), family=family)
    except OSError as error:
        LOG.debug("cannot listen at %s: %s", cluster.addresses[task], error)
        yield
        return

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Closing alone would not wake the thread.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_PROBE_SECONDS)


def run_server(
    topology: Topology,
    config: RunConfig,
    channel: ControlChannel,
    prepare: Callable[[], None] | None = None,
    arrive: Callable[[], None] | None = None,
) -> None:
    """Run the TensorFlow server of a parameter server or its worker until the chief is done.

    `prepare` is called before the server starts. The chief is told of what it raises. If `arrive`
    is given, it is called instead of waiting for the chief, and the server runs on.
    """
    failure = _run(prepare) if prepare is not None else ""
    if not _SERVERS:
        _SERVERS.append(_start_server(topology))
        LOG.info("%s serves at %s", topology.task, topology.cluster.addresses[topology.task])
    if failure:
        _report_failure(topology, failure, config.wait_seconds)
    elif arrive is not None:
        arrive()
    if arrive is None:
        wait_for_chief(topology, channel, config.wait_seconds)


def _start_server(topology: Topology) -> Server:
    job, index = job_and_index(topology.cluster, topology.task)
    # With fewer than two inter-op threads the server deadlocks.
    threads = max(2, tf.config.threading.get_inter_op_parallelism_threads() or 4)
    options = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=threads,
        intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
    )
    cluster_spec = tf.train.ClusterSpec(ps_jobs(topology.cluster))
    return tf.distribute.Server(cluster_spec, job_name=job, task_index=index, config=options)


def wait_for_exit(topology: Topology) -> None:
    """Wait until the chief no longer listens: it still releases what it has on this server."""
    deadline = time.monotonic() + _GRACE_SECONDS
    address = topology.cluster.addresses[topology.cluster.chief()]
    while is_listening(address) and time.monotonic() < deadline:
        time.sleep(0.2)


def _run(prepare: Callable[[], None]) -> str:
    """Call a function and return its error as text, or an empty string."""
    try:
        prepare()
    except PhalanxError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return ""


def _report_failure(topology: Topology, failure: str, seconds: float) -> None:
    """Send the failure of this task to the chief, as soon as the chief listens."""
    message = Message(MessageType.FAILED, str(topology.task), failure)
    send_to_chief(topology, message, seconds)


def send_to_chief(topology: Topology, message: Message, seconds: float) -> None:
    """Send a message to the chief, as soon as the chief listens."""
    chief = topology.cluster.chief()
    deadline = time.monotonic() + seconds
    while not is_listening(topology.cluster.addresses[chief]):
        if time.monotonic() > deadline:
            raise PeerError(
                f"gave up after {seconds:.0f} s waiting for {chief} to report: {message.text}"
            )
        time.sleep(0.5)
    send(topology.cluster, [chief], message, has_ps=topology.strategy.has_ps)


def wait_for_chief(topology: Topology, channel: ControlChannel, wait_seconds: float) -> Message:
    """Return the next message of the chief that tells this task to end or to continue.

    Raises the error that the chief reports, or a `PeerError` if it stops responding.
    """
    chief = topology.cluster.chief()
    address = topology.cluster.addresses[chief]
    name = str(topology.task)
    last_seen = last_logged = time.monotonic()
    was_seen = False
    is_server = topology.task.role is Role.PS
    # The next start of the chief needs a parameter server, and fills it again.
    lost_seconds = wait_seconds if is_server and will_be_restarted() else _LOST_SECONDS
    # A worker, whose data and place in the program belong to the dead chief, is started again with
    # it: it must also notice a chief that is back within these seconds.
    follows_chief = will_be_restarted() and not is_server
    probe_seconds = _PROBE_SECONDS / 2 if follows_chief else _PROBE_SECONDS
    refusals = 0
    stop_time: float | None = None
    # While the chief saves, it needs its parameter servers.
    grace = read_grace(os.environ, max(_GRACE_SECONDS, wait_seconds))
    with catch_sigterm() as stop:
        while True:
            message = channel.wait(0.5 if stop() else probe_seconds)
            if message is not None:
                _handle(message)
                return message
            now = time.monotonic()
            if stop() and stop_time is None:
                stop_time = now
                terminated = Message(MessageType.TERMINATED, name)
                send(topology.cluster, [chief], terminated, topology.strategy.has_ps)
            if stop_time is not None and now - stop_time > grace:
                raise Interrupted(
                    f"{name} received SIGTERM, and the chief did not answer within {grace:.0f} s"
                )
            if (answer := probe(address)) is Answer.LISTENING:
                was_seen, last_seen, refusals = True, now, 0
                continue
            if follows_chief and was_seen and answer is Answer.CLOSED:
                refusals += 1
            is_lost = now - last_seen > _choose_limit(was_seen, answer, lost_seconds, wait_seconds)
            # A single refusal may mean that TensorFlow is about to listen.
            if is_lost or refusals > 1:
                raise PeerError(
                    f"a peer stopped responding: the chief ({chief} at {address})"
                    if was_seen
                    else f"gave up after {wait_seconds:.0f} s waiting for {chief} at {address}"
                )
            if now - last_seen > _PROBE_SECONDS and now - last_logged > 10:
                last_logged = now
                LOG.info("waiting for %s at %s", chief, address)


def _choose_limit(
    was_seen: bool, answer: Answer, lost_seconds: float, wait_seconds: float
) -> float:
    """Return how long to wait for a chief that does not listen."""
    if not was_seen:
        return wait_seconds
    # A network that is cut may heal, and the chief goes on meanwhile.
    return max(lost_seconds, PEER_SECONDS) if answer is Answer.NONE else lost_seconds


def _handle(message: Message) -> None:
    if message.type is MessageType.OBJECT:
        return
    # The sender still needs this server for its reply and, after a failure, for its clean-up.
    time.sleep(0.3 if message.type is MessageType.DONE else 2.0)
    if message.type is MessageType.FAILED:
        raise TrainingError(f"{message.sender} failed: {message.text}")
    if message.type is MessageType.INTERRUPTED:
        raise Interrupted("the run received SIGTERM and the chief has saved: run it again")
    LOG.info("%s is done", message.sender)
