"""Calls that the tasks of a cluster make together: of `fit`, `evaluate` and `predict`.

Every task runs the same program, and the chief runs it first. At the end of a call the other tasks
wait for the chief. If its program ends, theirs end too. If it makes another call, they receive what
the last call returned, and run their programs up to that call as well.

Objects are sent as files, which the receiver's TensorFlow server writes into a directory that the
receiver has made for them.
"""

import atexit
import hashlib
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tensorflow as tf

from phalanx.cluster import Task
from phalanx.cluster.job_environment import will_be_restarted
from phalanx.errors import ConfigurationError, PeerError, WorkerError
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.runtime.control_channel import ControlChannel, is_listening, send, write_file
from phalanx.train.runtime.joining import open_channel
from phalanx.train.runtime.messages import Message, MessageType
from phalanx.train.runtime.peers import send_to_chief, wait_for_chief, wait_for_exit
from phalanx.train.runtime.topology import Strategy, Topology

_PART_BYTES = 2**27
_POLL_SECONDS = 1.0
# A task may take so many times longer than the chief took for the same.
_SLOWNESS = 10


@dataclass(frozen=True)
class _Ready:
    """The text of a message: where the sender is in its program, and where it receives objects."""

    number: int
    function: str
    order: str
    directory: str

    def encode(self) -> str:
        return json.dumps([self.number, self.function, self.order, self.directory])

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls(*json.loads(text))


@dataclass
class ProgramCalls:
    """The calls that this process has made with the other tasks of its cluster."""

    topology: Topology
    channel: ControlChannel
    wait_seconds: float
    number: int = 0
    _directories: dict[Task, str] = field(default_factory=dict)
    _result: tuple[Any, ...] | None = None
    _ended: float = 0.0
    _sent: int = 0

    def __post_init__(self) -> None:
        if self.topology.is_chief and self._is_shared:
            atexit.register(self._release_all)

    @property
    def _is_shared(self) -> bool:
        return self.topology.strategy is not Strategy.ONE_PROCESS

    @property
    def others(self) -> list[Task]:
        """The trainers that are not the chief."""
        chief = self.topology.cluster.chief() if self._is_shared else self.topology.task
        return [task for task in self.topology.trainers if task != chief]

    def begin(self, function: str, order: str = "") -> None:
        """On the chief: let the others continue with their programs, and wait for them.

        `order` is what the order of the data depends on.
        """
        if not self._is_shared:
            return
        seconds = self.wait_seconds
        if self.number and self._result is not None:
            # The others now run what the chief has run since the last call.
            seconds += _SLOWNESS * (time.monotonic() - self._ended)
            self._release()
        self.number += 1
        waiting = {str(task): task for task in self.others}
        goal = f"call phalanx.{function}"
        while waiting:
            message = self._receive(MessageType.READY, waiting.values(), goal, seconds)
            ready = _Ready.decode(message.text)
            if (ready.number, ready.function) != (self.number, function):
                raise ConfigurationError(
                    f"{message.sender} calls phalanx.{ready.function} as call {ready.number} of "
                    f"its program, but the chief calls phalanx.{function} as call {self.number}: "
                    "all tasks must make the same calls"
                )
            if ready.order != order:
                raise ConfigurationError(
                    f"the data of {message.sender} is shuffled in another order than the chief's "
                    f"(seeds {ready.order} and {order}), so that the tasks would not share it: "
                    "call keras.utils.set_random_seed just before you make the dataset, or give "
                    "each shuffle a seed"
                )
            self._directories[waiting.pop(message.sender)] = ready.directory

    def arrive(self, function: str, order: str = "") -> None:
        """On another task: tell the chief that this task has reached the next call."""
        self.number += 1
        ready = _Ready(self.number, function, order, self._directory.name)
        message = Message(MessageType.READY, str(self.topology.task), ready.encode())
        send_to_chief(self.topology, message, self.wait_seconds)

    def end(self, *result: Any, exits: bool) -> None:
        """On the chief: keep the result for the others, or send it now if they do not exit."""
        self._result, self._ended = result, time.monotonic()
        if self._is_shared and not exits:
            self._release()

    def broadcast(self, value: Any) -> None:
        """On the chief: send an object to all others."""
        data = pickle.dumps((self._directory.name, value))
        sent = [call_in_background(self._send, task, data) for task in self.others]
        for task in sent:
            task.result()

    def receive(self) -> Any:
        """On another task: return what the chief broadcasts, or end with the chief's program."""
        message = wait_for_chief(self.topology, self.channel, self.wait_seconds)
        if message.type is MessageType.OBJECT:
            self._directories[self.topology.cluster.chief()], value = self._read(message)
            return value
        if self.topology.strategy.has_ps:
            wait_for_exit(self.topology)
        sys.exit(0)

    def send_to_chief(self, value: Any) -> None:
        """On another task, after it has received something: send an object to the chief."""
        self._send(self.topology.cluster.chief(), pickle.dumps(value))

    def gather(self, seconds: float) -> list[Any]:
        """On the chief: return the object that each of the others sends, in their order.

        `seconds` is how long the chief took for its own.
        """
        received: dict[str, Any] = {}
        limit = self.wait_seconds + _SLOWNESS * seconds
        while waiting := [task for task in self.others if str(task) not in received]:
            message = self._receive(MessageType.OBJECT, waiting, "send its results", limit)
            received[message.sender] = self._read(message)
        return [received[str(task)] for task in self.others]

    def _release(self) -> None:
        assert self._result is not None
        result, self._result = self._result, None
        self.broadcast(tuple(value() if callable(value) else value for value in result))

    def _release_all(self) -> None:
        if will_be_restarted() and getattr(sys, "last_value", None) is not None:
            # The program has failed. Its next start needs the parameter servers.
            return
        cluster = self.topology.cluster
        others = [task for task in cluster.tasks() if task != self.topology.task]
        done = Message(MessageType.DONE, str(self.topology.task))
        # One by one: no thread can be started at the exit of the interpreter.
        for task in others:
            send(cluster, [task], done, self.topology.strategy.has_ps)

    def _receive(
        self, kind: MessageType, waiting: Iterable[Task], goal: str, seconds: float
    ) -> Message:
        deadline = time.monotonic() + seconds
        while True:
            message = self.channel.wait(_POLL_SECONDS)
            if message is not None and message.type is kind:
                return message
            if message is not None and message.type is MessageType.FAILED:
                raise WorkerError(f"{message.sender} failed:\n{message.text}")
            lost = self._find_lost(waiting)
            if message is None and lost:
                raise PeerError(f"{lost[0]} ended and did not {goal}: its log says why")
            if time.monotonic() > deadline:
                names = ", ".join(map(str, waiting))
                raise PeerError(f"gave up after {seconds:.0f} s waiting for {names} to {goal}")

    def _find_lost(self, tasks: Iterable[Task]) -> list[Task]:
        addresses = self.topology.cluster.addresses
        return [task for task in tasks if not is_listening(addresses[task])]

    @cached_property
    def _directory(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="phalanx-")

    def _send(self, task: Task, data: bytes) -> None:
        """Write an object into the directory of another task, and tell it."""
        cluster, has_ps = self.topology.cluster, self.topology.strategy.has_ps
        self._sent += 1
        name = f"{self.topology.task}-{self._sent}"
        parts = range(0, len(data), _PART_BYTES)
        try:
            for number, begin in enumerate(parts):
                path = f"{self._directories[task]}/{name}-{number}"
                part = data[begin : begin + _PART_BYTES]
                write_file(cluster, task, path, part, has_ps, self.wait_seconds)
        except tf.errors.OpError as error:
            raise PeerError(f"{task} did not receive {len(data)} bytes: {error.message}") from error
        text = json.dumps([name, len(parts), hashlib.sha256(data).hexdigest()])
        send(cluster, [task], Message(MessageType.OBJECT, str(self.topology.task), text), has_ps)

    def _read(self, message: Message) -> Any:
        name, count, digest = json.loads(message.text)
        paths = [Path(self._directory.name) / f"{name}-{number}" for number in range(count)]
        data = b"".join(path.read_bytes() for path in paths)
        for path in paths:
            path.unlink()
        # The message is authenticated, and so is what it describes.
        if hashlib.sha256(data).hexdigest() != digest:
            raise PeerError(f"what {message.sender} has sent did not arrive as it was sent")
        return pickle.loads(data)


# A process makes its calls in one cluster.
_calls: ProgramCalls | None = None


def program_calls(topology: Topology, wait_seconds: float) -> ProgramCalls:
    """Return the calls of this process."""
    global _calls  # noqa: PLW0603
    if topology.strategy is Strategy.ONE_PROCESS:
        return ProgramCalls(topology, open_channel(topology), wait_seconds)
    if _calls is None:
        _calls = ProgramCalls(topology, open_channel(topology), wait_seconds)
    _calls.topology, _calls.wait_seconds = topology, wait_seconds
    return _calls
