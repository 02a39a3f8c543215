"""Predictions, and the files they are written to."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.serving.inputs import InputBatch
from phalanx.serving.predictions import as_json, open_writer, predict
from phalanx.train.export.signatures import DEFAULT_SIGNATURE, Signature


def test_predictions_are_written_in_order_with_the_keys_of_their_rows() -> None:
    signatures = {DEFAULT_SIGNATURE: Signature({}, {}, lambda x: {"y": x * 2})}
    batches = [
        InputBatch(
            DEFAULT_SIGNATURE, {"x": tf.constant([1, 2])}, 2, [{"file": "a"}, {"file": "b"}]
        ),
        InputBatch(DEFAULT_SIGNATURE, {"x": tf.constant([3])}, 1, [{"file": "c"}]),
    ]
    out, counts = io.StringIO(), list[int]()
    with open_writer("-", out) as writer:
        assert predict(signatures, batches, writer, counts.append) == 3
        with pytest.raises(DataError, match="nothing to predict"):
            predict(signatures, [], writer)
    assert counts == [2, 3]
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert rows == [{"file": "a", "y": 2}, {"file": "b", "y": 4}, {"file": "c", "y": 6}]


def test_bytes_become_text_or_base64() -> None:
    values = np.array([[b"hi"], [b"\xff"]], object)
    assert as_json(values) == [["hi"], [{"b64": "/w=="}]]
    assert as_json(values, as_base64=True) == [[{"b64": "aGk="}], [{"b64": "/w=="}]]


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet"])
def test_the_folder_of_the_predictions_is_created_if_possible(tmp_path: Path, name: str) -> None:
    with open_writer(str(tmp_path / "new" / name), None) as writer:  # type: ignore[arg-type]
        writer.write({"n": np.array([7])}, [])
    assert [path.name for path in (tmp_path / "new").iterdir()] == [name]
    out = str(tmp_path / "new" / name / name)
    with (
        pytest.raises(ConfigurationError, match=r"cannot be written: \w+"),
        open_writer(out, None),  # type: ignore[arg-type]
    ):
        raise AssertionError("the error comes before any prediction")


def test_parquet_holds_every_row(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with open_writer(str(tmp_path / "p.parquet"), None) as writer:  # type: ignore[arg-type]
        writer.write({"y": np.array([[1.0, 2.0]]), "n": np.array([7])}, [{"file": "a"}])
        writer.write({"y": np.array([[3.0, 4.0]]), "n": np.array([8])}, [{"file": "b"}])
    table = parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert table == {"file": ["a", "b"], "y": [[1.0, 2.0], [3.0, 4.0]], "n": [7, 8]}
