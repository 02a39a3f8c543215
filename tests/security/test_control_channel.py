"""Nobody outside of a job can end it, silence it or write to its terminal through its messages."""

from __future__ import annotations

import json
import logging
import os

import pytest

from phalanx import Cluster, Role, Task
from phalanx.cluster.job_secret import VARIABLE, make_secret
from phalanx.train.runtime.control_channel import CONTROL_CHANNEL, ControlChannel, path_of
from phalanx.train.runtime.messages import MAX_BYTES, Message, MessageType, seal

CLUSTER = Cluster.of(chief="a:1", workers=["b:1"], ps=["c:1"])
DONE = Message(MessageType.DONE, "chief-0")


class Channel:
    """The control channel of ps-0 in this process, and what anybody can write to it."""

    def __init__(self, secret: str | None) -> None:
        self.secret = secret.encode() if secret else None
        self.channel = ControlChannel()
        self.channel.open(CLUSTER, Task(Role.PS))

    def write(self, data: bytes) -> None:
        # As TensorFlow's operation WriteFile opens it.
        with open(path_of(CONTROL_CHANNEL), "wb", buffering=0) as pipe:  # noqa: PTH123
            pipe.write(data)

    def next_after(self, data: bytes) -> Message | None:
        """Return what the task receives first, of these bytes and a genuine message."""
        self.write(data)
        self.write(seal(DONE, "ps-0", self.secret))
        return self.channel.wait(30)


@pytest.fixture(params=["with", "without"])
def channel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Channel:
    secret = make_secret() if request.param == "with" else None
    if secret:
        monkeypatch.setenv(VARIABLE, secret)
    else:
        monkeypatch.delenv(VARIABLE, raising=False)
    return Channel(secret)


def forge(**changes: object) -> bytes:
    fields = {"type": "failed", "sender": "chief-0", "receiver": "ps-0", "number": 1, "text": "x"}
    return b"- " + json.dumps({**fields, **changes}).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"[]\n",
        b"- []\n",
        b"\n",
        b" \n",
        b"- {\n",
        b"- null\n",
        b"- " + b"[" * 3000 + b"\n",
        b"\xff\xfe\x00\n",
        b'- {"word": "failed", "sender": "chief-0", "text": "x"}\n',
        forge(type="reboot"),
        forge(type=["failed"]),
        forge(type={}),
        forge(number="1"),
        forge(number=True),
        forge(number=1.5),
        forge(text=None),
        forge(sender=["chief-0"]),
        forge(sender="stranger-0"),
        forge(receiver="ps-1"),
        forge(more=1),
        b"x" * (2 * MAX_BYTES) + b"\n",
    ],
)
def test_bad_line_is_ignored_and_the_next_message_arrives(channel: Channel, line: bytes) -> None:
    assert channel.next_after(line) == DONE


def test_endless_line_is_dropped(channel: Channel) -> None:
    for _ in range(64):
        channel.write(b"x" * 65536)
    assert channel.next_after(b"\n") == DONE


def test_unfinished_line_does_not_swallow_the_next_message(channel: Channel) -> None:
    assert channel.next_after(b"x") == DONE
    assert channel.next_after(b"x" * 3 * MAX_BYTES) == DONE


def test_forged_message_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, make_secret())
    channel = Channel(os.environ[VARIABLE])
    wrong = seal(Message(MessageType.FAILED, "chief-0", "forged"), "ps-0", b"another secret of 16")
    assert channel.next_after(forge() + wrong) == DONE


def test_message_cannot_be_sent_again_or_to_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, make_secret())
    channel = Channel(os.environ[VARIABLE])
    old = seal(Message(MessageType.FAILED, "chief-0", "old"), "ps-0", channel.secret)
    other = seal(Message(MessageType.FAILED, "chief-0", "other"), "worker-0", channel.secret)
    assert channel.next_after(b"") == DONE
    assert channel.next_after(old + other) == DONE


def test_control_characters_do_not_reach_the_terminal(channel: Channel) -> None:
    text = "a\x1b[2J\x1b]0;title\x07b\r\x9b31m\u202ec\ud800\n\td"
    line = seal(Message(MessageType.FAILED, "chief-0", text), "ps-0", channel.secret)
    received = channel.next_after(line)
    assert received is not None
    shown = r"a\u001b[2J\u001b]0;title\u0007b\r\u009b31m\u202ec\ud800"
    assert received.text == f"{shown}\n\td"


def test_log_of_bad_lines_is_short_and_printable(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "phalanx"):
        assert channel.next_after(b"\x1b[31m \x1b[31m\n" * 1000) == DONE
    assert 1 <= len(caplog.records) <= 12
    assert "\x1b" not in caplog.text
