"""Words between the tasks of a cluster, carried by the TensorFlow servers that are there anyway.

Nothing in TensorFlow tells a parameter server that training is over, and TF_CONFIG gives one
address a task, which TensorFlow itself listens on. So a message is an operation: the sender asks
the receiver's server to write a file, and the file is a pipe that the receiver reads.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import tensorflow as tf

from phalanx.cluster import Cluster, Task
from phalanx.cluster.spec import split_address
from phalanx.open_files import allow_open_files
from phalanx.train.runtime.topology import place_in_jobs

LOG = logging.getLogger("phalanx")

# The receiver's end has the same number in every process, so that a sender knows the path.
_DESCRIPTOR = 1013
_PATH = f"/dev/fd/{_DESCRIPTOR}"
# own_data.py has the next one.
HIGHEST_DESCRIPTOR = _DESCRIPTOR + 1

# A pipe takes this much in one piece, so that two messages never mix.
_LONGEST = 4000


class MessageType(StrEnum):
    """What a message says."""

    DONE = "done"
    FAILED = "failed"
    AGAIN = "again"
    TERMINATED = "terminated"


@dataclass(frozen=True)
class Message:
    """A word from another task, and its reason."""

    word: MessageType
    sender: str
    text: str = ""


class ControlChannel:
    """Where this process gets messages. Open it before the TensorFlow server starts."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._read: int | None = None

    def open(self) -> None:
        """Listen from now on."""
        allow_open_files(HIGHEST_DESCRIPTOR + 1)
        self._read, write = os.pipe()
        os.dup2(write, _DESCRIPTOR, inheritable=False)
        os.close(write)
        threading.Thread(target=self._listen, name="mailbox", daemon=True).start()

    def wait(self, seconds: float) -> Message | None:
        """The next message, if one comes in time."""
        try:
            return self._messages.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return None

    def put(self, message: Message) -> None:
        """Give a message to this process itself."""
        self._messages.put(message)

    def _listen(self) -> None:
        assert self._read is not None
        left = b""
        while True:
            if not (more := os.read(self._read, 65536)):
                return
            left += more
            *lines, left = left.split(b"\n")
            for line in lines:
                try:
                    found = json.loads(line)
                    message = Message(MessageType(found["word"]), found["sender"], found["text"])
                except (ValueError, KeyError):
                    LOG.warning("a message that makes no sense was ignored: %r", line[:80])
                    continue
                self._messages.put(message)


def post(
    cluster: Cluster,
    receivers: Iterable[Task],
    message: Message,
    job_of_ps: bool,
    seconds: float = 15,
) -> None:
    """Send to several tasks at once; who cannot be reached in time is left out."""
    threads = [
        threading.Thread(
            target=_post_one, args=(cluster, task, message, job_of_ps, seconds), daemon=True
        )
        for task in receivers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 1)


def _post_one(
    cluster: Cluster, task: Task, message: Message, job_of_ps: bool, seconds: float
) -> None:
    address = cluster.addresses[task]
    if not is_listening(address):
        return
    job, index = place_in_jobs(cluster, task) if job_of_ps else (str(task.role), task.index)
    overhead = len(json.dumps(_as_dict(message, "")))
    text = message.text
    while len(json.dumps(text)) + overhead > _LONGEST:
        text = "..." + text[len(text) // 8 + 3 :]
    line = json.dumps(_as_dict(message, text)) + "\n"
    device = f"/job:{job}/task:{index}"
    try:
        with tf.Graph().as_default(), tf.device(f"{device}/device:CPU:0"):
            write = tf.io.write_file(_PATH, line)
            options = tf.compat.v1.ConfigProto(
                device_filters=[device], operation_timeout_in_ms=int(seconds * 1000)
            )
            with tf.compat.v1.Session(f"grpc://{address}", config=options) as session:
                session.run(write)
    except tf.errors.OpError as error:
        LOG.debug("%s did not take a message: %s", task, error)


def _as_dict(message: Message, text: str) -> dict[str, str]:
    return {"word": message.word, "sender": message.sender, "text": text}


def is_listening(address: str, seconds: float = 2.0) -> bool:
    """Whether somebody takes connections there."""
    try:
        with socket.create_connection(split_address(address), timeout=seconds):
            return True
    except OSError:
        return False
