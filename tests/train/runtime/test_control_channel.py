"""Messages between tasks."""

from __future__ import annotations

import socket

import pytest
import tensorflow as tf

from phalanx import Cluster, Role, Task
from phalanx.train.runtime.control_channel import ControlChannel, is_listening, send
from phalanx.train.runtime.messages import Message, MessageType


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """A cluster of one task, whose server runs in this process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    SERVERS.append(tf.distribute.Server(tf.train.ClusterSpec({"chief": [address]}), "chief", 0))
    return Cluster.of(chief=address)


# A TensorFlow server cannot be stopped.
SERVERS: list[object] = []


def test_a_message_arrives_and_a_long_text_loses_its_beginning(cluster: Cluster) -> None:
    channel = ControlChannel()
    channel.open(
        Cluster.of(chief=cluster.addresses[Task(Role.CHIEF)], workers=["a:1", "b:1"]),
        Task(Role.CHIEF),
    )
    assert channel.wait(0) is None
    sent = Message(MessageType.FAILED, "worker-1", "ValueError: \N{SNOWMAN}\nin line 2")
    send(cluster, [Task(Role.CHIEF)], sent, has_ps=False)
    assert channel.wait(60) == sent
    long = Message(MessageType.FAILED, "worker-1", "x" * 100_000 + "the end")
    send(cluster, [Task(Role.CHIEF)], long, has_ps=True)
    received = channel.wait(60)
    assert received is not None
    assert received.text.startswith("...x") and received.text.endswith("xthe end")
    assert len(received.text) > 3000


def test_tasks_that_do_not_listen_are_skipped() -> None:
    cluster = Cluster.of(chief="127.0.0.1:1")
    assert not is_listening("127.0.0.1:1")
    send(cluster, [Task(Role.CHIEF)], Message(MessageType.DONE, "ps-0"), has_ps=False)
