"""The messages between tasks, as lines that the receiver can verify.

A line is the HMAC of the rest with the secret of the job, a space, and a JSON object. The object
has a number that grows with each message of a sender, so that a line cannot be sent a second time,
and the name of its receiver, so that it cannot be sent to another task. A newline precedes each
line, too: what others have written without an end must not become the beginning of a message.
"""

import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from phalanx.printable import make_printable

LOG = logging.getLogger("phalanx")

# A pipe takes this many bytes in one atomic write, so that messages never mix.
MAX_BYTES = 4000
_MAX_WARNINGS = 10
_UNSIGNED = b"-"
_FIELDS = frozenset({"type", "sender", "receiver", "number", "text"})


class MessageType(StrEnum):
    """What a message announces."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "again"
    """The chief has saved after SIGTERM: run the job again."""
    TERMINATED = "terminated"
    """The sender has received SIGTERM."""
    READY = "ready"
    """The sender has reached a call that all tasks make together."""
    OBJECT = "object"
    """The sender has written an object into the receiver's directory."""


@dataclass(frozen=True)
class Message:
    """A message from another task."""

    type: MessageType
    sender: str
    text: str = ""


def seal(message: Message, receiver: str, secret: bytes | None) -> bytes:
    """Return the line for a receiver; a text that is too long loses its beginning."""
    number = _numbers.next()
    while len(line := _encode(message, receiver, number, secret)) > MAX_BYTES:
        # The end of a traceback says the most.
        message = replace(message, text="..." + message.text[len(message.text) // 8 + 3 :])
    return line


def _encode(message: Message, receiver: str, number: int, secret: bytes | None) -> bytes:
    fields = {"sender": message.sender, "receiver": receiver, "number": number}
    body = json.dumps({"type": message.type, **fields, "text": message.text}).encode()
    return b"\n%s %s\n" % (_sign(body, secret), body)


def _sign(body: bytes, secret: bytes | None) -> bytes:
    if secret is None:
        return _UNSIGNED
    return hmac.new(secret, body, hashlib.sha256).hexdigest().encode()


class _Numbers:
    """Numbers that grow, also from one process of a task to the next."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last


_numbers = _Numbers()


class MessageReader:
    """Turns the bytes that a task receives into messages; what is not one is logged and dropped.

    Without a secret, every well-formed message is taken.
    """

    def __init__(self, receiver: str, senders: Collection[str], secret: bytes | None) -> None:
        self._receiver = receiver
        self._senders = frozenset(senders)
        self._secret = secret
        self._rest = b""
        self._skips_line = False
        self._last_numbers: dict[str, int] = {}
        self._warnings = 0

    def read(self, received: bytes) -> list[Message]:
        """Return the messages that are complete with these bytes."""
        *lines, rest = (self._rest + received).split(b"\n")
        if self._skips_line and lines:
            self._skips_line = False
            del lines[0]
        if len(rest) > MAX_BYTES or self._skips_line:
            if not self._skips_line:
                self._warn("a line without an end")
            self._skips_line, rest = True, b""
        self._rest = rest
        return [message for line in lines if line and (message := self._verify(line)) is not None]

    def _verify(self, line: bytes) -> Message | None:
        try:
            return self._open(line)
        except (ValueError, RecursionError) as error:
            self._warn(str(error))
            return None

    def _open(self, line: bytes) -> Message:
        if len(line) > MAX_BYTES:
            raise ValueError("a line that is too long")
        signature, _, body = line.partition(b" ")
        if self._secret is not None and not hmac.compare_digest(
            signature, _sign(body, self._secret)
        ):
            raise ValueError(
                "a message without the secret of this job (all tasks need the same PHALANX_SECRET)"
            )
        found = json.loads(body)
        if not isinstance(found, dict) or found.keys() != _FIELDS:
            raise ValueError("a message of unknown form")
        number, sender, text = found["number"], found["sender"], found["text"]
        if type(number) is not int or not isinstance(sender, str) or not isinstance(text, str):
            raise ValueError("a message of unknown form")
        if found["receiver"] != self._receiver or sender not in self._senders:
            raise ValueError("a message for another task, or from a task that does not exist")
        if number <= self._last_numbers.get(sender, 0):
            raise ValueError(f"a message of {sender} that was sent before")
        message = Message(MessageType(found["type"]), sender, make_printable(text))
        self._last_numbers[sender] = number
        return message

    def _warn(self, what: str) -> None:
        self._warnings += 1
        if self._warnings <= _MAX_WARNINGS:
            LOG.warning("ignored %s", make_printable(what))
