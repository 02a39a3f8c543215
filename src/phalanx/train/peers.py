"""The other tasks: waiting for them, and serving the chief until it is done."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator

import tensorflow as tf

from phalanx.cluster import TFConfig
from phalanx.cluster.preflight import check_peers
from phalanx.errors import Interrupted, PeerError, TrainingError
from phalanx.train.config import RunConfig
from phalanx.train.mailbox import Mailbox, Message, Word, is_listening, post
from phalanx.train.signals import catch_sigterm
from phalanx.train.strategy import Formation, place_in_jobs, ps_jobs

LOG = logging.getLogger("phalanx")

_PROBE_SECONDS = 2.0
_GONE_SECONDS = 10.0
_GRACE_SECONDS = 60.0


@contextlib.contextmanager
def waiting_for_peers(formation: Formation, seconds: float) -> Iterator[None]:
    """Say for whom this process waits, and give up after a limit with that name.

    With parameter servers the chief simply waits. In step everybody waits inside TensorFlow, which
    nothing can interrupt: there the process ends.
    """
    config = TFConfig(formation.cluster, formation.task)
    if formation.way.has_ps:
        missing = _wait(config, seconds, threading.Event())
        if missing:
            raise PeerError(missing)
        yield
        return
    arrived = threading.Event()

    def watch() -> None:
        missing = _wait(config, seconds, arrived)
        if missing and not arrived.is_set():
            print(f"phalanx: {missing}", file=sys.stderr, flush=True)
            os._exit(PeerError.exit_code)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        arrived.set()


def _wait(config: TFConfig, seconds: float, arrived: threading.Event) -> str:
    deadline = time.monotonic() + seconds
    reports = check_peers(config, timeout=min(5.0, seconds), wait=True)
    while (missing := [r for r in reports if r.reason]) and not arrived.is_set():
        left = deadline - time.monotonic()
        named = "; ".join(str(report) for report in missing)
        if left <= 0:
            return f"gave up after {seconds:.0f} s waiting for {named}"
        LOG.info("waiting for %s (%.0f s left)", named, left)
        reports = check_peers(config, timeout=min(10.0, left), wait=True)
    return ""


def serve(formation: Formation, config: RunConfig) -> None:
    """Be a parameter server or a worker of one: do what the chief says until it is done."""
    mailbox = Mailbox()
    mailbox.open()
    job, index = place_in_jobs(formation.cluster, formation.task)
    # Fewer than two threads between operations would wait for each other for ever.
    threads = max(2, tf.config.threading.get_inter_op_parallelism_threads() or 4)
    options = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=threads,
        intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
    )
    server = tf.distribute.Server(
        tf.train.ClusterSpec(ps_jobs(formation.cluster)),
        job_name=job,
        task_index=index,
        config=options,
        start=True,
    )
    LOG.info("%s serves at %s", formation.task, formation.cluster.addresses[formation.task])
    try:
        _serve_until_told(formation, mailbox, config.wait_seconds)
    finally:
        # A TensorFlow server cannot be stopped: keep it until the process ends.
        _SERVERS.append(server)


_SERVERS: list[object] = []


def _serve_until_told(formation: Formation, mailbox: Mailbox, wait_seconds: float) -> None:
    chief = formation.cluster.chief()
    address = formation.cluster.addresses[chief]
    me = str(formation.task)
    seen = time.monotonic()
    said = seen
    met = False
    asked: float | None = None
    with catch_sigterm() as stop:
        while True:
            message = mailbox.wait(0.5 if stop() else _PROBE_SECONDS)
            if message is not None:
                _obey(message, chief == formation.task)
                return
            now = time.monotonic()
            if stop() and asked is None:
                asked = now
                post(formation.cluster, [chief], Message(Word.TERMINATED, me), job_of_ps=True)
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


def _obey(message: Message, is_chief: bool) -> None:
    # Let the sender get its answer before the server goes.
    time.sleep(0.3)
    if message.word is Word.FAILED:
        raise TrainingError(f"{message.sender} failed: {message.text}")
    if message.word is Word.AGAIN:
        raise Interrupted("the run was asked to end (SIGTERM); the chief has saved: run it again")
    LOG.info("%s is done", message.sender)
