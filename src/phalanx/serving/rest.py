"""TensorFlow Serving's REST API: from JSON to tensors and back.

https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.errors import DataError
from phalanx.serving.inputs import to_array
from phalanx.serving.outputs import as_json
from phalanx.train.export.signatures import RAW, Signature

Arrays = dict[str, np.ndarray[Any, Any]]


class BadRequestError(Exception):
    """What the client sent makes no sense; the message says why."""


@dataclass(frozen=True)
class Question:
    """A request to predict: a signature and its inputs."""

    signature: str
    arrays: Arrays
    rows: int
    by_row: bool
    """Whether it came as `instances` (and is answered by `predictions`) or as `inputs`."""


def read_question(body: bytes, signatures: Mapping[str, Signature]) -> Question:
    """The request's body, checked against the signature it is for."""
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"JSON Parse error: {error}") from None
    if not isinstance(asked, dict):
        raise BadRequestError("the request must be a JSON object with 'instances' or 'inputs'")
    name = asked.get("signature_name") or RAW
    if name not in signatures:
        there = ", ".join(sorted(signatures))
        raise BadRequestError(f"Serving signature name: {name!r} not found; there are: {there}")
    inputs = signatures[name].inputs
    if ("instances" in asked) == ("inputs" in asked):
        raise BadRequestError("give either 'instances' or 'inputs', and not both")
    by_row = "instances" in asked
    columns = _columns_of_rows(asked["instances"], inputs) if by_row else _columns(asked, inputs)
    arrays = {key: _as_array(key, columns[key], spec) for key, spec in inputs.items()}
    counts = {key: len(array) for key, array in arrays.items() if array.ndim}
    if len(set(counts.values())) > 1:
        raise BadRequestError(f"the inputs have different numbers of rows: {counts}")
    return Question(name, arrays, next(iter(counts.values()), 1), by_row)


def write_answer(question: Question, outputs: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The response's body: bare values if there is one output, otherwise by name."""
    columns = {name: _encode(name, values) for name, values in outputs.items()}
    only = next(iter(columns.values())) if len(columns) == 1 else None
    if not question.by_row:
        return json.dumps({"outputs": columns if only is None else only}).encode()
    if only is not None:
        return json.dumps({"predictions": only}).encode()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return json.dumps({"predictions": rows}).encode()


def describe_status(version: int) -> bytes:
    """The response to a request for the model's state."""
    status = {
        "version": str(version),
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    return json.dumps({"model_version_status": [status]}, indent=1).encode()


def describe_metadata(name: str, version: int, signatures: Mapping[str, Signature]) -> bytes:
    """The response to a request for the model's signatures."""
    described = {
        key: {
            "inputs": {n: _describe(n, spec) for n, spec in signature.inputs.items()},
            "outputs": {n: _describe(n, spec) for n, spec in signature.outputs.items()},
            "method_name": "tensorflow/serving/predict",
        }
        for key, signature in signatures.items()
    }
    return json.dumps(
        {
            "model_spec": {"name": name, "signature_name": "", "version": str(version)},
            "metadata": {"signature_def": {"signature_def": described}},
        },
        indent=1,
    ).encode()


def describe_error(message: str) -> bytes:
    """The response to what cannot be done."""
    return json.dumps({"error": message}).encode()


def _columns_of_rows(rows: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(rows, list) or not rows:
        raise BadRequestError("'instances' must be a list with at least one instance")
    named = [isinstance(row, dict) and set(row) != {"b64"} for row in rows]
    if any(named) != all(named):
        raise BadRequestError("'instances' must be all objects, or all values")
    if not named[0]:
        if len(inputs) != 1:
            raise BadRequestError(f"the model has several inputs, name them: {', '.join(inputs)}")
        return {next(iter(inputs)): rows}
    for number, row in enumerate(rows):
        if set(row) != set(inputs):
            raise BadRequestError(
                f"instance {number} has {sorted(row)}, but the inputs are {sorted(inputs)}"
            )
    return {name: [row[name] for row in rows] for name in inputs}


def _columns(asked: dict[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    given = asked["inputs"]
    if not isinstance(given, dict) or set(given) == {"b64"}:
        if len(inputs) != 1:
            raise BadRequestError(f"the model has several inputs, name them: {', '.join(inputs)}")
        return {next(iter(inputs)): given}
    if set(given) != set(inputs):
        raise BadRequestError(f"'inputs' has {sorted(given)}, but the inputs are {sorted(inputs)}")
    return given


def _as_array(name: str, value: Any, spec: Any) -> np.ndarray[Any, Any]:
    try:
        array = to_array(name, value, spec.dtype)
    except DataError as error:
        raise BadRequestError(str(error)) from None
    if not spec.shape.is_compatible_with(array.shape):
        wanted = ["?" if size is None else size for size in spec.shape]
        raise BadRequestError(f"{name} has the shape {list(array.shape)}, but must be {wanted}")
    return array


def _encode(name: str, values: np.ndarray[Any, Any]) -> Any:
    """Outputs whose names end with _bytes are base64, as TensorFlow Serving has it."""
    if values.dtype == object and name.endswith("_bytes"):
        return _as_base64(values.tolist())
    return as_json(values)


def _as_base64(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_base64(inner) for inner in value]
    return {"b64": base64.b64encode(value).decode()}


def _describe(name: str, spec: Any) -> dict[str, Any]:
    rank = spec.shape.rank
    sizes = [] if rank is None else [-1 if size is None else size for size in spec.shape]
    return {
        "dtype": f"DT_{_TYPES.get(spec.dtype.name, spec.dtype.name.upper())}",
        "tensor_shape": {
            "dim": [{"size": str(size), "name": ""} for size in sizes],
            "unknown_rank": rank is None,
        },
        "name": f"{name}:0",
    }


_TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}
