"""Whatever a task receives, it reads the genuine messages in it, and nothing else."""

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.security.fuzzing import fuzz, vary

from phalanx.printable import make_printable
from phalanx.train.runtime.messages import (
    MAX_BYTES,
    Message,
    MessageReader,
    MessageType,
    seal,
)

SECRET = b"0123456789abcdef"
SENDERS = ["chief-0", "worker-0"]
DONE = Message(MessageType.DONE, "chief-0")

fields = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["done", "failed", "again", "terminated", "x"]) | st.integers(),
        "sender": st.sampled_from([*SENDERS, "ps-9"]) | st.none() | st.lists(st.text(), max_size=2),
        "receiver": st.sampled_from(["ps-0", "ps-1"]) | st.none(),
        "number": st.integers() | st.booleans() | st.floats() | st.text(max_size=4),
        "text": st.text(max_size=40) | st.none() | st.sampled_from(["\x1b[2J", "\ud800"]),
        "more": st.none(),
    },
)
lines = st.one_of(
    st.binary(max_size=60),
    fields.map(lambda found: b"- " + json.dumps(found).encode()),
    st.integers(0, 3 * MAX_BYTES).map(lambda size: b"x" * size),
    st.integers(0, 2000).map(lambda depth: b"- " + b"[" * depth),
    st.sampled_from([b"[]", b"- []", b"- {}", b"", b"\xff\xfe", b"- NaN", b"- 1e999"]),
)
inputs = st.lists(lines, max_size=6).map(b"\n".join)
PIECES = [b"\n", b"- ", b"{", b"}", b'"', b"\\", b"0", b"done", b"ps-0", b"\x1b[", b"\xff", b"\x00"]


@fuzz
@given(inputs, st.integers(1, 5000))
def test_only_genuine_messages_are_read(data: bytes, piece: int) -> None:
    for each in vary(data, PIECES):
        reader = MessageReader("ps-0", SENDERS, SECRET)
        received = each + seal(DONE, "ps-0", SECRET)
        pieces = [received[start : start + piece] for start in range(0, len(received), piece)]
        assert [message for part in pieces for message in reader.read(part)] == [DONE]
        assert len(reader._rest) <= MAX_BYTES


@fuzz
@given(st.text(max_size=200))
def test_changed_messages_are_not_read(text: str) -> None:
    genuine = seal(Message(MessageType.FAILED, "worker-0", text), "ps-0", SECRET)
    for changed in vary(genuine, PIECES):
        messages = MessageReader("ps-0", SENDERS, SECRET).read(changed + b"\n")
        assert len(messages) == (genuine.strip() in changed.split(b"\n"))


@fuzz
@given(inputs)
def test_messages_without_a_secret_are_well_formed(data: bytes) -> None:
    for each in vary(data, PIECES):
        reader = MessageReader("ps-0", SENDERS, None)
        for message in reader.read(each + b"\n"):
            assert isinstance(message.type, MessageType)
            assert message.sender in SENDERS
            assert message.text == make_printable(message.text)
            message.text.encode()


@fuzz
@given(st.text(max_size=5000), st.sampled_from(list(MessageType)))
def test_every_text_arrives_printable(text: str, kind: MessageType) -> None:
    for each in vary(text, ["\n", "\x1b[2J", "\ud800", "\U0001f600" * 500, "\u202e"]):
        line = seal(Message(kind, "worker-0", each), "ps-0", SECRET)
        assert len(line) <= MAX_BYTES
        [message] = MessageReader("ps-0", SENDERS, SECRET).read(line)
        assert message.type is kind
        assert make_printable(each).endswith(message.text.removeprefix("...")[-100:])
