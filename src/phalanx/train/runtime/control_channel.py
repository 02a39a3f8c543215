"""Messages between the tasks of a cluster, carried by their TensorFlow servers.

Nothing in TensorFlow tells a parameter server that training is over, and TF_CONFIG gives each task
one address, which TensorFlow itself listens on. So a message is an operation: the sender makes the
receiver's server write a file, and that file is a pipe that the receiver reads.
"""

import json
import logging
import os
import queue
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

import tensorflow as tf

from phalanx.cluster import Cluster, Task
from phalanx.cluster.spec import split_address
from phalanx.open_files import allow_open_files
from phalanx.train.runtime.topology import job_and_index

LOG = logging.getLogger("phalanx")

# File descriptors with the same number in every process of a job: an operation that one task sends
# to another names a file of the receiver, and the sender cannot ask for its path.
CONTROL_CHANNEL = 1013
WORKER_DATA = 1014

# A pipe takes this many bytes in one atomic write, so that messages never mix.
_MAX_BYTES = 4000
_SEND_SECONDS = 15.0


def path_of(descriptor: int) -> str:
    """Return the path by which operations open a descriptor of the process that runs them."""
    return f"/dev/fd/{descriptor}"


def duplicate_to(source: int, descriptor: int) -> None:
    """Make one of these descriptors refer to an open file."""
    allow_open_files(max(CONTROL_CHANNEL, WORKER_DATA) + 1)
    os.dup2(source, descriptor, inheritable=False)


class MessageType(StrEnum):
    """What a message announces."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "again"
    """The chief has saved after SIGTERM: run the job again."""
    TERMINATED = "terminated"
    """The sender has received SIGTERM."""


@dataclass(frozen=True)
class Message:
    """A message from another task."""

    type: MessageType
    sender: str
    text: str = ""

    def encode(self) -> str:
        return json.dumps({"word": self.type, "sender": self.sender, "text": self.text}) + "\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        found = json.loads(line)
        return cls(MessageType(found["word"]), found["sender"], found["text"])


class ControlChannel:
    """The messages to this process. Open it before the TensorFlow server starts."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def open(self) -> None:
        """Start to receive messages."""
        reader, writer = os.pipe()
        duplicate_to(writer, CONTROL_CHANNEL)
        os.close(writer)
        threading.Thread(target=self._receive, args=(reader,), daemon=True).start()

    def wait(self, seconds: float) -> Message | None:
        """Return the next message, or None if none arrives in time."""
        try:
            return self._messages.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return None

    def _receive(self, reader: int) -> None:
        rest = b""
        while received := os.read(reader, 65536):
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                try:
                    self._messages.put(Message.decode(line))
                except (ValueError, KeyError):
                    LOG.warning("ignored a message that cannot be parsed: %r", line[:80])


def send(cluster: Cluster, receivers: Iterable[Task], message: Message, has_ps: bool) -> None:
    """Send a message to several tasks at once; tasks that cannot be reached are skipped."""
    threads = [
        threading.Thread(target=_send_to, args=(cluster, task, message, has_ps), daemon=True)
        for task in receivers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SEND_SECONDS + 1)


def _send_to(cluster: Cluster, task: Task, message: Message, has_ps: bool) -> None:
    address = cluster.addresses[task]
    if not is_listening(address):
        return
    while len(line := message.encode()) > _MAX_BYTES:
        # The end of a traceback says the most.
        message = replace(message, text="..." + message.text[len(message.text) // 8 + 3 :])
    job, index = job_and_index(cluster, task) if has_ps else (str(task.role), task.index)
    device = f"/job:{job}/task:{index}"
    try:
        with tf.Graph().as_default(), tf.device(f"{device}/device:CPU:0"):
            write = tf.io.write_file(path_of(CONTROL_CHANNEL), line)
            options = tf.compat.v1.ConfigProto(
                device_filters=[device], operation_timeout_in_ms=int(_SEND_SECONDS * 1000)
            )
            with tf.compat.v1.Session(f"grpc://{address}", config=options) as session:
                session.run(write)
    except tf.errors.OpError as error:
        LOG.debug("%s did not receive a message: %s", task, error)


def is_listening(address: str, seconds: float = 2.0) -> bool:
    """Whether a process accepts connections at an address."""
    try:
        with socket.create_connection(split_address(address), timeout=seconds):
            return True
    except OSError:
        return False
