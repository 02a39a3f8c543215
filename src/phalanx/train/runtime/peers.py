"""The other tasks: waiting for them, and serving the chief until it is done."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import tensorflow as tf

from phalanx.cluster import TFConfig
from phalanx.cluster.preflight import check_peers
from phalanx.cluster.spec import split_address
from phalanx.errors import Interrupted, PeerError, PhalanxError, TrainingError
from phalanx.train.config import RunConfig
from phalanx.train.runtime.control_channel import (
    ControlChannel,
    Message,
    MessageType,
    is_listening,
    post,
)
from phalanx.train.runtime.signals import catch_sigterm
from phalanx.train.runtime.topology import Topology, place_in_jobs, ps_jobs

LOG = logging.getLogger("phalanx")

_PROBE_SECONDS = 2.0
_GONE_SECONDS = 10.0
_GRACE_SECONDS = 60.0


def wait_for_peers(topology: Topology, seconds: float) -> None:
    """Wait until every other task listens; say for whom, and give up with that name."""
    config = TFConfig(topology.cluster, topology.task)
    deadline = time.monotonic() + seconds
    reports = check_peers(config, timeout=min(5.0, seconds), wait=True)
    while missing := [report for report in reports if report.reason]:
        left = deadline - time.monotonic()
        named = "; ".join(str(report) for report in missing)
        if left <= 0.1:
            raise PeerError(f"gave up after {seconds:.0f} s waiting for {named}")
        LOG.info("waiting for %s (%.0f s left)", named, left)
        reports = check_peers(config, timeout=min(10.0, left), wait=True)


@contextlib.contextmanager
def answering(address: str) -> Iterator[None]:
    """Listen at this task's address until TensorFlow does, so that peers see that it is there."""
    try:
        listener = socket.create_server(("", split_address(address)[1]))
    except OSError as error:
        LOG.debug("cannot listen at %s: %s", address, error)
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
        # To shut it down wakes the thread; to close it alone would not.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def serve(topology: Topology, config: RunConfig, prepare: Callable[[], None] | None = None) -> None:
    """Be a parameter server or a worker of one: do what the chief says until it is done.

    `prepare` is called before anybody can reach this task. What it raises is told to the chief.
    """
    channel = ControlChannel()
    channel.open()
    problem = _try(prepare) if prepare is not None else ""
    job, index = place_in_jobs(topology.cluster, topology.task)
    # Fewer than two threads between operations would wait for each other for ever.
    threads = max(2, tf.config.threading.get_inter_op_parallelism_threads() or 4)
    options = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=threads,
        intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
    )
    server = tf.distribute.Server(
        tf.train.ClusterSpec(ps_jobs(topology.cluster)),
        job_name=job,
        task_index=index,
        config=options,
        start=True,
    )
    LOG.info("%s serves at %s", topology.task, topology.cluster.addresses[topology.task])
    try:
        if problem:
            _complain(topology, problem, config.wait_seconds)
        _serve_until_told(topology, channel, config.wait_seconds)
    finally:
        # A TensorFlow server cannot be stopped: keep it until the process ends.
        _SERVERS.append(server)


_SERVERS: list[object] = []


def _try(prepare: Callable[[], None]) -> str:
    """What went wrong, in the words of whoever raised it."""
    try:
        prepare()
    except PhalanxError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return ""


def _complain(topology: Topology, problem: str, seconds: float) -> None:
    """Tell the chief, as soon as it is there, what makes this task useless."""
    chief = topology.cluster.chief()
    deadline = time.monotonic() + seconds
    while not is_listening(topology.cluster.addresses[chief]):
        if time.monotonic() > deadline:
            raise PeerError(f"gave up after {seconds:.0f} s waiting for {chief} to tell: {problem}")
        time.sleep(0.5)
    message = Message(MessageType.FAILED, str(topology.task), problem)
    post(topology.cluster, [chief], message, job_of_ps=True)


def _serve_until_told(topology: Topology, channel: ControlChannel, wait_seconds: float) -> None:
    chief = topology.cluster.chief()
    address = topology.cluster.addresses[chief]
    me = str(topology.task)
    seen = time.monotonic()
    said = seen
    met = False
    asked: float | None = None
    with catch_sigterm() as stop:
        while True:
            message = channel.wait(0.5 if stop() else _PROBE_SECONDS)
            if message is not None:
                _obey(message)
                return
            now = time.monotonic()
            if stop() and asked is None:
                asked = now
                post(topology.cluster, [chief], Message(MessageType.TERMINATED, me), job_of_ps=True)
            if asked is not None and now - asked > _GRACE_SECONDS:
                raise Interrupted(f"{me} was asked to end, and the chief did not answer")
            if is_listening(address):
                met, seen = True, now
            elif now - seen > (_GONE_SECONDS if met else wait_seconds):
                raise PeerError(
                    f"the chief ({chief} at {address}) went away without a word"
                    if met
                    else f"gave up after {wait_seconds:.0f} s waiting for {chief} at {address}"
                )
            elif not met and now - said > 10:
                said = now
                LOG.info("waiting for %s at %s", chief, address)


def _obey(message: Message) -> None:
    # Let the sender get its answer, and after an error its last word, before the server goes.
    time.sleep(0.3 if message.word is MessageType.DONE else 2.0)
    if message.word is MessageType.FAILED:
        raise TrainingError(f"{message.sender} failed: {message.text}")
    if message.word is MessageType.AGAIN:
        raise Interrupted("the run was asked to end (SIGTERM); the chief has saved: run it again")
    LOG.info("%s is done", message.sender)
