"""Which error a task shows when the run fails."""

from __future__ import annotations

import pytest
import tensorflow as tf

from phalanx import Cluster, Role, RunConfig, Task, TFConfig
from phalanx.errors import PeerError, TrainingError, WorkerError
from phalanx.train.runtime.control_channel import ControlChannel
from phalanx.train.runtime.failures import propagate_failures, user_traceback
from phalanx.train.runtime.messages import Message, MessageType
from phalanx.train.runtime.topology import resolve_topology

CLUSTER = Cluster.of(chief="127.0.0.1:1", workers=["127.0.0.1:2"])
LOST = tf.errors.UnavailableError(None, None, "connection reset")


class OneMessage(ControlChannel):
    """A channel on which one message has arrived."""

    def __init__(self, message: Message | None) -> None:
        super().__init__()
        self.message = message

    def wait(self, seconds: float) -> Message | None:
        return self.message


def fail(role: Role, error: Exception, message: Message | None) -> None:
    topology = resolve_topology(TFConfig(CLUSTER, Task(role)), RunConfig())
    with propagate_failures(topology, OneMessage(message)):
        raise error


def test_the_failure_of_a_peer_replaces_tensorflows_error() -> None:
    message = Message(MessageType.FAILED, "worker-0", "ValueError: bad")
    with pytest.raises(WorkerError, match="worker-0 failed:\nValueError: bad"):
        fail(Role.CHIEF, LOST, message)
    with pytest.raises(TrainingError, match="worker-0 failed: ValueError: bad"):
        fail(Role.WORKER, LOST, message)


def test_a_lost_connection_without_a_message_is_a_peer_error() -> None:
    with pytest.raises(PeerError, match=r"a peer stopped responding: .*connection reset"):
        fail(Role.CHIEF, LOST, None)


def test_the_users_own_error_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError):
        fail(Role.CHIEF, KeyError("x"), Message(MessageType.FAILED, "worker-0", "later"))


def test_user_traceback_leaves_tensorflows_text_out() -> None:
    trace = "Traceback (most recent call last):\n  line 1\nValueError: bad"
    error = tf.errors.UnknownError(None, None, f"{{{{function_node}}}} {trace}\n\n\n\t [[PyFunc]]")
    assert user_traceback(error) == trace
