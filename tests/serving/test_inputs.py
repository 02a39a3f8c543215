"""Batches of inputs from files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError, RecordError
from phalanx.records import Compression, RecordWriter
from phalanx.serving.inputs import read_batches
from phalanx.train.export.signatures import DEFAULT_SIGNATURE, EXAMPLES_SIGNATURE, Signature


def takes(**specs: Any) -> dict[str, Signature]:
    return {DEFAULT_SIGNATURE: Signature(specs, {}, lambda **tensors: tensors)}


PIXELS = takes(image=tf.TensorSpec([None, 4, 4, 3], tf.float32))


def test_images_are_resized_and_scaled_and_keep_their_file_names(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        path = str(tmp_path / f"{number}.png")
        tf.io.write_file(path, tf.io.encode_png(tf.fill([8, 6, 3], tf.constant(102, tf.uint8))))
        paths.append(path)
    batches = list(read_batches(paths, PIXELS, size=2))
    assert [batch.rows for batch in batches] == [2, 1]
    assert batches[1].keys == [{"file": paths[2]}]
    np.testing.assert_allclose(batches[0].tensors["image"], np.full((2, 4, 4, 3), 0.4), rtol=1e-5)
    raw = next(iter(read_batches(paths, PIXELS, size=9, raw_pixels=True)))
    np.testing.assert_allclose(raw.tensors["image"], np.full((3, 4, 4, 3), 102.0), rtol=1e-5)


def test_a_file_that_is_not_an_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("hello")
    with pytest.raises(DataError, match=r"a\.png is not an image"):
        list(read_batches([str(tmp_path / "a.png")], PIXELS, 8))
    flat = takes(x=tf.TensorSpec([None, 3], tf.float32))
    with pytest.raises(ConfigurationError, match="images need"):
        list(read_batches([str(tmp_path / "a.png")], flat, 8))


def test_columns_and_objects_are_no_serialized_examples(tmp_path: Path) -> None:
    examples = takes(examples=tf.TensorSpec([None], tf.string))
    (tmp_path / "a.csv").write_text("age,job\n31,clerk\n")
    (tmp_path / "a.jsonl").write_text('{"age": 31, "job": "clerk"}\n')
    for name in ("a.csv", "a.jsonl"):
        with pytest.raises((ConfigurationError, DataError), match="predict TFRecord files"):
            list(read_batches([str(tmp_path / name)], examples, 8))


def test_csv_columns_are_the_inputs_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word,n,extra\nhi,3,9\nyou,4,9\n")
    two = takes(n=tf.TensorSpec([None, 1], tf.int32), word=tf.TensorSpec([None], tf.string))
    [batch] = read_batches([str(tmp_path / "a.csv")], two, 8)
    assert batch.tensors["n"].numpy().tolist() == [[3], [4]]
    assert batch.tensors["word"].numpy().tolist() == [b"hi", b"you"]
    three = takes(**two[DEFAULT_SIGNATURE].inputs, z=tf.TensorSpec([None], tf.float32))
    with pytest.raises(ConfigurationError, match="no column for z"):
        list(read_batches([str(tmp_path / "a.csv")], three, 8))


WHOLE = takes(n=tf.TensorSpec([None, 1], tf.int64))


def test_64_bit_integers_stay_exact(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n9007199254740993\n")
    (tmp_path / "b.csv").write_text("other\n9007199254740993\n")
    (tmp_path / "c.jsonl").write_text('{"n": 9007199254740993}\n')
    for batch in read_batches([str(path) for path in tmp_path.iterdir()], WHOLE, 8):
        assert batch.tensors["n"].numpy().tolist() == [[9007199254740993]]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "n\n3.7\n", "line 2: invalid literal for int"),
        ("a.jsonl", '{"n": 3.7}', "must be whole numbers"),
        ("a.jsonl", '{"n": null}', "not all numbers"),
        ("a.jsonl", '{"n": {"a": 1}}', "not all numbers"),
        ("a.jsonl", '{"n": "3"}', "not all numbers"),
        ("a.jsonl", '{"n": 99999999999999999999999}', "not all numbers of at most 64 bits"),
        ("a.jsonl", '{"n": 9223372036854775808}', "not all from -9223372036854775808 to"),
    ],
)
def test_values_that_are_not_integers_are_refused(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=reason):
        list(read_batches([str(tmp_path / name)], WHOLE, 8))


def test_strings_may_be_base64(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"hi"\n{"s": {"b64": "/wA="}}\n')
    words = takes(s=tf.TensorSpec([None], tf.string))
    [batch] = read_batches([str(tmp_path / "a.jsonl")], words, 8)
    assert batch.tensors["s"].numpy().tolist() == [b"hi", b"\xff\0"]
    (tmp_path / "a.jsonl").write_text("5\n")
    with pytest.raises(DataError, match="5 is neither a string"):
        list(read_batches([str(tmp_path / "a.jsonl")], words, 8))


@pytest.mark.parametrize(
    ("line", "reason"),
    [("{", "line 1 is not JSON"), ('{"y": 1}', "line 1 lacks x"), ("[[1], 2]", "make no float32")],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(line)
    flat = takes(x=tf.TensorSpec([None, 3], tf.float32))
    with pytest.raises(DataError, match=reason):
        list(read_batches([str(tmp_path / "a.jsonl")], flat, 8))


def test_records_may_be_compressed_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    messages = [b"one", b"", b"two\0"]
    with RecordWriter(path, compression=Compression.GZIP) as writer:
        writer.write_all(messages)
    inputs = {"examples": tf.TensorSpec([None], tf.string)}
    examples = {EXAMPLES_SIGNATURE: Signature(inputs, {}, lambda **tensors: tensors)}
    batches = list(read_batches([str(path)], examples, 2))
    assert [batch.rows for batch in batches] == [2, 1]
    found = [each for batch in batches for each in batch.tensors["examples"].numpy().tolist()]
    assert found == messages
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordError, match=r"a\.tfrecord: record 3 .*cut short"):
        list(read_batches([str(path)], examples, 2))


def test_records_need_known_shapes(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(ConfigurationError, match="write example_features"):
        list(read_batches([str(tmp_path / "a.tfrecord")], PIXELS, 8))
