"""Compatibility with TensorFlow and protobuf, in both directions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.unknown_fields import UnknownFieldSet

from phalanx.data.tensors import parse_spec
from phalanx.errors import RecordError
from phalanx.records import (
    Schema,
    decode_examples,
    encode_examples,
    infer_schema,
    read_records,
    read_table,
    write_examples,
)

CORPUS = sorted((Path(__file__).parent / "fuzz" / "corpus").iterdir())


def as_row(message: Any) -> dict[str, Any]:
    """What protobuf decodes from a message, as rows of this library."""
    row: dict[str, Any] = {}
    for name, feature in message.context.feature.items():
        kind = feature.WhichOneof("kind")
        if kind:
            row[name] = list(getattr(feature, kind).value)
    for name, steps in message.feature_lists.feature_list.items():
        kinds = [step.WhichOneof("kind") for step in steps.feature]
        if any(kinds):
            row[name] = [
                list(getattr(step, kind).value) if kind else []
                for step, kind in zip(steps.feature, kinds, strict=True)
            ]
    return row


def is_comparable(message: Any) -> bool:
    """Can the message be a row, and do the implementations of protobuf agree on it?

    A column has one name and one kind. Of an entry of a map with an unknown field, upb throws away
    the whole entry, and C++ the field; in an unknown group, upb passes over anything.
    """
    for steps in message.feature_lists.feature_list.values():
        if len({step.WhichOneof("kind") for step in steps.feature} - {None}) > 1:
            return False
    if set(message.context.feature) & set(message.feature_lists.feature_list):
        return False
    if any(field.wire_type == 3 for field in UnknownFieldSet(message)):
        return False
    maps = message.context, message.feature_lists
    return not any(field.field_number == 1 for each in maps for field in UnknownFieldSet(each))


def mutate(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(source.randrange(1, 4)):
        changed[source.randrange(len(changed))] = source.choice(
            [source.randrange(256), 0, 1, 8, 10, 18, 26, 127, 128]
        )
    return bytes(changed)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_fuzz_corpus_is_decoded_like_protobuf(path: Path) -> None:
    source, seed = random.Random(path.name), path.read_bytes()
    messages = [seed, *(mutate(seed, source) for _ in range(1500))]
    compared = 0
    for message in messages:
        try:
            expected = tf.train.SequenceExample.FromString(message)
        except Exception:
            continue
        if not is_comparable(expected):
            continue
        found = decode_examples([message]).to_pylist()[0]
        wanted = as_row(expected)
        for name, values in wanted.items():
            if found.get(name) != values:
                is_single = isinstance(found[name], (int, float, bytes))
                np.testing.assert_equal([found[name]] if is_single else found[name], values)
        assert {name for name, value in found.items() if value is not None} == set(wanted)
        compared += 1
    assert compared > 0 or path.name == "records"


def random_rows(count: int) -> list[dict[str, Any]]:
    source = random.Random(3)
    return [
        {
            "id": source.randrange(-(2**63), 2**63),
            "score": np.float32(source.random()).item(),
            "name": source.randbytes(source.randrange(9)),
            "box": [np.float32(source.random()).item() for _ in range(4)],
            "tags": [source.randbytes(3) for _ in range(source.randrange(4))],
        }
        for _ in range(count)
    ]


def test_tensorflow_reads_our_records(tmp_path: Path) -> None:
    rows = random_rows(500)
    path = str(tmp_path / "a.tfrecord")
    write_examples(path, rows)
    schema = infer_schema(path)
    batch = next(iter(tf.data.TFRecordDataset(path).batch(500)))
    parsed = tf.io.parse_example(batch, parse_spec(schema))
    assert parsed["id"].numpy().tolist() == [row["id"] for row in rows]
    assert parsed["name"].numpy().tolist() == [row["name"] for row in rows]
    assert parsed["tags"].to_list() == [row["tags"] for row in rows]
    np.testing.assert_array_equal(parsed["box"], [row["box"] for row in rows])


@pytest.mark.parametrize("packing", ["", "GZIP", "ZLIB"])
def test_tensorflow_records_are_read(tmp_path: Path, packing: str) -> None:
    rows = random_rows(200)
    path = str(tmp_path / "a.tfrecord")
    messages = encode_examples(rows)
    with tf.io.TFRecordWriter(path, packing) as writer:
        for message in messages:
            writer.write(message)
    assert list(read_records(path)) == messages
    table = read_table(path)
    assert table["tags"].to_pylist() == [row["tags"] for row in rows]
    assert table["id"].to_pylist() == [row["id"] for row in rows]


def test_messages_equal_those_of_tensorflow() -> None:
    for row, message in zip(random_rows(50), encode_examples(random_rows(50)), strict=True):
        example = tf.train.Example()
        feature = example.features.feature
        feature["id"].int64_list.value.append(row["id"])
        feature["score"].float_list.value.append(row["score"])
        feature["name"].bytes_list.value.append(row["name"])
        feature["box"].float_list.value.extend(row["box"])
        feature["tags"].bytes_list.SetInParent()
        feature["tags"].bytes_list.value.extend(row["tags"])
        assert message == example.SerializeToString(deterministic=True)


def test_tensorflow_parses_our_sequence_examples() -> None:
    rows = [
        {"id": 1, "steps": [[1.0, 2.0], [3.0]], "words": [[b"a"], [b"b"]]},
        {"id": 2, "steps": [[4.0]], "words": [[b"c"]]},
    ]
    messages = encode_examples(rows)
    schema = Schema.from_arrow(decode_examples(messages).schema)
    spec = parse_spec(schema)
    assert isinstance(spec, tuple)
    context, steps, _ = tf.io.parse_sequence_example(messages, *spec)
    assert context["id"].numpy().tolist() == [1, 2]
    assert steps["steps"].to_list() == [row["steps"] for row in rows]
    assert steps["words"].to_list() == [row["words"] for row in rows]


def test_damage_is_rejected_like_in_tensorflow() -> None:
    [message] = encode_examples([{"x": [1, 2, 3]}])
    with pytest.raises(RecordError):
        decode_examples([message[:-1]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.parse_example([message[:-1]], {"x": tf.io.RaggedFeature(tf.int64)})
