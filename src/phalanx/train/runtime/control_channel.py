"""Messages between the tasks of a cluster, carried by their TensorFlow servers.

Nothing in TensorFlow tells a parameter server that training is over, and TF_CONFIG gives each task
one address, which TensorFlow itself listens on. So a message is an operation: the sender makes the
receiver's server write a file, and that file is a pipe that the receiver reads. Other processes of
the receiver's host can write to it too, so messages are authenticated (messages.py).
"""

import errno
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Iterable
from enum import Enum

import tensorflow as tf

from phalanx.cluster import Cluster, Task
from phalanx.cluster.job_secret import read_secret
from phalanx.cluster.spec import split_address
from phalanx.open_files import allow_open_files
from phalanx.train.runtime.exposure import check_guard, check_secret
from phalanx.train.runtime.messages import Message, MessageReader, seal
from phalanx.train.runtime.topology import job_and_index

LOG = logging.getLogger("phalanx")

# File descriptors with the same number in every process of a job: an operation that one task sends
# to another names a file of the receiver, and the sender cannot ask for its path.
CONTROL_CHANNEL = 1013
WORKER_DATA = 1014
WORKER_DATA_PASS = 1015

_SEND_SECONDS = 15.0


def path_of(descriptor: int) -> str:
    """Return the path by which operations open a descriptor of the process that runs them."""
    return f"/dev/fd/{descriptor}"


def duplicate_to(source: int, descriptor: int) -> None:
    """Make one of these descriptors refer to an open file."""
    allow_open_files(max(CONTROL_CHANNEL, WORKER_DATA, WORKER_DATA_PASS) + 1)
    os.dup2(source, descriptor, inheritable=False)


class ControlChannel:
    """The messages to this process. Open it before the TensorFlow server starts."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def open(self, cluster: Cluster, receiver: Task) -> None:
        """Start to receive messages, as one of the tasks of a cluster."""
        check_guard()
        secret = read_secret(os.environ)
        check_secret(secret)
        messages = MessageReader(str(receiver), list(map(str, cluster.tasks())), secret)
        reader, writer = os.pipe()
        duplicate_to(writer, CONTROL_CHANNEL)
        os.close(writer)
        threading.Thread(target=self._receive, args=(reader, messages), daemon=True).start()

    def wait(self, seconds: float) -> Message | None:
        """Return the next message, or None if none arrives in time."""
        try:
            return self._messages.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return None

    def _receive(self, reader: int, messages: MessageReader) -> None:
        while received := os.read(reader, 65536):
            try:
                for message in messages.read(received):
                    self._messages.put(message)
            except Exception:  # a task that receives nothing more would never end
                LOG.exception("ignored what another task has sent")


def send(cluster: Cluster, receivers: Iterable[Task], message: Message, has_ps: bool) -> None:
    """Send a message to several tasks at once; tasks that cannot be reached are skipped."""
    receivers = list(receivers)
    if len(receivers) == 1:
        # At the exit of the interpreter, no thread can be started any more.
        _send_to(cluster, receivers[0], message, has_ps)
        return
    threads = [
        threading.Thread(target=_send_to, args=(cluster, task, message, has_ps), daemon=True)
        for task in receivers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SEND_SECONDS + 1)


def _send_to(cluster: Cluster, task: Task, message: Message, has_ps: bool) -> None:
    if not is_listening(cluster.addresses[task]):
        return
    line = seal(message, str(task), read_secret(os.environ))
    try:
        write_file(cluster, task, path_of(CONTROL_CHANNEL), line, has_ps)
    except tf.errors.OpError as error:
        LOG.debug("%s did not receive a message: %s", task, error)


def write_file(
    cluster: Cluster,
    task: Task,
    path: str,
    data: bytes,
    has_ps: bool,
    seconds: float = _SEND_SECONDS,
) -> None:
    """Let the server of another task write a file on its host."""
    job, index = job_and_index(cluster, task) if has_ps else (str(task.role), task.index)
    device = f"/job:{job}/task:{index}"
    with tf.Graph().as_default(), tf.device(f"{device}/device:CPU:0"):
        contents = tf.compat.v1.placeholder(tf.string, [])
        write = tf.io.write_file(path, contents)
        options = tf.compat.v1.ConfigProto(
            device_filters=[device], operation_timeout_in_ms=int(seconds * 1000)
        )
        target = f"grpc://{cluster.addresses[task]}"
        with tf.compat.v1.Session(target, config=options) as session:
            session.run(write, {contents: data})


class Answer(Enum):
    """What an address answers to an attempt to connect."""

    LISTENING = "a process accepts connections"
    CLOSED = "no process listens"
    NONE = "no answer: the host is down, or the network is cut"


def probe(address: str, seconds: float = 2.0) -> Answer:
    """Try to connect to an address."""
    try:
        with socket.create_connection(split_address(address), timeout=seconds):
            return Answer.LISTENING
    except OSError as error:
        cut = isinstance(error, TimeoutError) or error.errno in _CUT
        return Answer.NONE if cut else Answer.CLOSED


_CUT = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def is_listening(address: str, seconds: float = 2.0) -> bool:
    """Whether a process accepts connections at an address."""
    return probe(address, seconds) is Answer.LISTENING


def wait_for_answer(address: str, seconds: float) -> bool:
    """Wait for a host that is cut off; return whether a process accepts connections there."""
    deadline = time.monotonic() + seconds
    while (answer := probe(address)) is Answer.NONE and time.monotonic() < deadline:
        time.sleep(0.5)
    return answer is Answer.LISTENING
