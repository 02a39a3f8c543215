"""Sessions recover from the loss of a peer, under whatever name TensorFlow reports it."""

import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1 import lost_peers, train

RESTARTED = (
    "ABORTED: From /job:ps/replica:0/task:1:\nSession handle is not found: 31eecedb. Possibly this "
    'worker ("/job:ps/replica:0/task:1") just restarted.'
)
TWO_ERRORS = f"""\

=====================
CANCELLED: From /job:worker/replica:0/task:1:
RecvFromRemoteAsync is cancelled.
{RESTARTED}
=====================
"""
EARLIER = f"cancelled\nRecent warning and error logs:\n  W0000 00:00 {RESTARTED}"


def run_until_it_succeeds(message: str) -> int:
    """Return in how many sessions a step was tried that fails once."""
    sessions: list[Any] = []

    def step() -> Any:
        if len(sessions) == 1:
            raise tf.errors.CancelledError(None, None, message)
        return 1.0

    class Count(tf.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            sessions.append(session)

    with tf.Graph().as_default():
        result = tf.py_func(step, [], tf.float64)
        with train.MonitoredTrainingSession(hooks=[Count()]) as session:
            session.run(result)
    return len(sessions)


def test_session_is_made_again_if_a_cancelled_step_hides_a_lost_peer() -> None:
    assert run_until_it_succeeds(TWO_ERRORS) == 2


def test_session_that_a_thread_closed_while_it_was_created_is_made_again() -> None:
    sessions: list[Any] = []

    class Close(tf.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            sessions.append(session)
            if len(sessions) == 1:
                with coord.stop_on_exception():
                    raise tf.errors.UnavailableError(None, None, "Socket closed")
                session.run(cancelled)

    def cancel() -> Any:
        raise tf.errors.CancelledError(None, None, "Step was cancelled by Session::Close()")

    with tf.Graph().as_default():
        one = tf.constant(1)
        cancelled = tf.py_func(cancel, [], tf.float64)
        with train.MonitoredTrainingSession(hooks=[Close()]) as session:
            assert session.run(one) == 1
    assert len(sessions) == 2


def test_session_that_does_not_close_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lost_peers, "CLOSE_SECONDS", 1)
    has_begun, may_end = threading.Event(), threading.Event()

    def wait() -> float:
        has_begun.set()
        may_end.wait(60)
        return 1.0

    class Wait(tf.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            def run() -> None:
                with suppress(tf.errors.CancelledError):
                    session.run(waiting)

            threading.Thread(target=run, daemon=True).start()
            assert has_begun.wait(60)

    target = tf.train.Server.create_local_server().target
    with tf.Graph().as_default():
        waiting, one = tf.py_func(wait, [], tf.float64), tf.constant(1)
        with train.MonitoredTrainingSession(target, hooks=[Wait()]) as session:
            session.run(one)
    assert "did not close within 1 s" in caplog.text
    may_end.set()


@pytest.mark.parametrize("message", ["the queue was closed", EARLIER])
def test_step_that_fails_without_a_lost_peer_is_an_error(message: str) -> None:
    with pytest.raises(tf.errors.OpError):
        run_until_it_succeeds(message)


def test_program_ends_with_an_open_session() -> None:
    program = (
        "import tensorflow.compat.v1 as tf; from phalanx.compat.tf1 import train; "
        "tf.disable_eager_execution(); tf.train.get_or_create_global_step(); "
        "session = train.MonitoredTrainingSession()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
