"""The sessions of TensorFlow 1 programs on clusters."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1 import session, train


@pytest.fixture(scope="module")
def target() -> str:
    server = tf.train.Server.create_local_server()
    found: str = server.target
    return found


def chief(target: str) -> Any:
    return train.MonitoredTrainingSession(target)


def worker(target: str) -> Any:
    return train.MonitoredTrainingSession(target, is_chief=False)


def estimator_chief(target: str) -> Any:
    creator = session.make_session_creator(
        tf.train.Scaffold(),
        is_chief=True,
        master=target,
        config=tf.ConfigProto(),
        find_checkpoint=lambda: None,
    )
    return tf.train.MonitoredSession(creator)


def supervisor(target: str) -> Any:
    return train.Supervisor(logdir=None).prepare_or_wait_for_session(target)


@pytest.mark.parametrize("create", [chief, worker, estimator_chief, supervisor])
def test_step_that_waits_for_a_peer_has_a_limit(
    create: Callable[[str], Any], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STEP_SECONDS", 1)
    with tf.Graph().as_default():
        tokens = tf.FIFOQueue(1, [tf.int32], shared_name=create.__name__)
        token = tokens.dequeue()
        with pytest.raises(tf.errors.DeadlineExceededError), create(target) as opened:
            opened.run(token)


def test_limit_of_the_program_is_kept() -> None:
    own = tf.ConfigProto(operation_timeout_in_ms=5)
    assert session.limit_waits("grpc://localhost:1", own) is own
    assert session.limit_waits("grpc://localhost:1", None).operation_timeout_in_ms == 7_200_000
    # A session in this process waits for nobody.
    assert session.limit_waits("", None) is None
