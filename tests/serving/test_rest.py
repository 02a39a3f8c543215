"""Requests and responses of the REST API."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from phalanx.errors import DataError
from phalanx.serving.rest import PredictRequest, format_response, parse_request
from phalanx.train.export.signatures import DEFAULT_SIGNATURE, Signature

SPECS = {"x": tf.TensorSpec([None, 2], tf.float32), "n": tf.TensorSpec([None], tf.int32)}
SIGNATURES = {DEFAULT_SIGNATURE: Signature(SPECS, {}, lambda **tensors: tensors)}


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [{"x": [1, 2], "n": 3}, {"x": [4, 5], "n": 6}]},
        {"inputs": {"x": [[1, 2], [4, 5]], "n": [3, 6]}},
    ],
)
def test_several_inputs_by_row_or_by_column(body: dict[str, Any]) -> None:
    request = parse_request(json.dumps(body).encode(), SIGNATURES)
    assert (request.rows, request.by_row) == (2, "instances" in body)
    assert request.arrays["x"].tolist() == [[1, 2], [4, 5]]
    assert request.arrays["n"].tolist() == [3, 6]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"instances": [1, 2]}, "several inputs, name them: x, n"),
        ({"inputs": [1, 2]}, "several inputs, name them: x, n"),
        ({"inputs": {"x": [[1, 2]]}}, r"'inputs' has \['x'\], but the inputs are \['n', 'x'\]"),
        ({"inputs": {"x": [[1, 2]], "n": [1, 2]}}, "different numbers of rows"),
        ({"inputs": [1], "instances": [1]}, "and not both"),
    ],
)
def test_a_request_that_does_not_match_the_signature(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        parse_request(json.dumps(body).encode(), SIGNATURES)


def test_texts_in_place_of_numbers_take_no_memory() -> None:
    """NumPy makes all texts of an array as long as the longest: here 400 MB from 200 KB."""
    texts = [["x" * 200_000], *[[""]] * 500]
    body = json.dumps({"inputs": {"x": texts, "n": [1] * 501}}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="the values of x are not all numbers"):
            parse_request(body, SIGNATURES)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_outputs_are_by_row_and_by_name_and_bytes_are_base64() -> None:
    outputs = {"y": np.array([1, 2]), "raw_bytes": np.array([b"a", b"b"], object)}
    by_row = json.loads(format_response(PredictRequest("", {}, 2, True), outputs))
    assert by_row == {
        "predictions": [
            {"y": 1, "raw_bytes": {"b64": "YQ=="}},
            {"y": 2, "raw_bytes": {"b64": "Yg=="}},
        ]
    }
    by_column = json.loads(format_response(PredictRequest("", {}, 2, False), outputs))
    assert by_column["outputs"]["y"] == [1, 2]
