"""The lines of messages: sealed by the sender, verified by the receiver."""

from __future__ import annotations

import json
import re

from phalanx.train.runtime.messages import MAX_BYTES, Message, MessageReader, MessageType, seal

SECRET = b"0123456789abcdef"
SENDERS = ["chief-0", "worker-0", "worker-1"]
FAILED = Message(MessageType.FAILED, "worker-1", "ValueError: \N{SNOWMAN}\nin line 2")


def test_messages_arrive_in_any_pieces() -> None:
    data = seal(FAILED, "chief-0", SECRET) + seal(FAILED, "chief-0", SECRET)
    reader = MessageReader("chief-0", SENDERS, SECRET)
    found = [message for byte in data for message in reader.read(bytes([byte]))]
    assert found == [FAILED, FAILED]


def test_format_of_a_line() -> None:
    start, mac, _, body = re.split(rb"(\w+)( )", seal(FAILED, "chief-0", SECRET), maxsplit=1)
    assert start == b"\n"
    assert len(mac) == 64
    assert json.loads(body) == {
        "type": "failed",
        "sender": "worker-1",
        "receiver": "chief-0",
        "number": json.loads(body)["number"],
        "text": FAILED.text,
    }


def test_long_text_loses_its_beginning() -> None:
    line = seal(Message(MessageType.FAILED, "worker-1", "x" * 100_000 + "\0end"), "chief-0", None)
    assert len(line) <= MAX_BYTES
    [message] = MessageReader("chief-0", SENDERS, None).read(line)
    assert message.text.startswith("...x") and message.text.endswith("x\\u0000end")


def test_messages_without_a_secret_are_read_by_tasks_without_a_secret() -> None:
    assert MessageReader("chief-0", SENDERS, None).read(seal(FAILED, "chief-0", None)) == [FAILED]


def test_restarted_sender_is_heard() -> None:
    reader = MessageReader("chief-0", SENDERS, SECRET)
    for _ in range(3):
        assert reader.read(seal(FAILED, "chief-0", SECRET)) == [FAILED]
