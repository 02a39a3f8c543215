"""The REST API of TensorFlow Serving: parse requests and format responses.

https://www.tensorflow.org/tfx/serving/api_rest
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.errors import DataError
from phalanx.serving.inputs import to_array
from phalanx.serving.predictions import as_json
from phalanx.train.export.signatures import DEFAULT_SIGNATURE, Signature
from phalanx.train.types import Array, NamedArrays, NamedSpecs, TensorSpec

_DTYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}


@dataclass(frozen=True)
class PredictRequest:
    signature: str
    arrays: NamedArrays
    rows: int
    by_row: bool
    """Whether it has `instances` (the response has `predictions`) or `inputs` (`outputs`)."""


def parse_request(body: bytes, signatures: Mapping[str, Signature]) -> PredictRequest:
    """Parse the body of a request and check it against the signature; raise DataError."""
    try:
        return _parse(json.loads(body), signatures)
    except RecursionError:
        raise DataError("JSON Parse error: it is nested too deeply") from None
    except ValueError as error:
        raise DataError(f"JSON Parse error: {error}") from None


def _parse(request: object, signatures: Mapping[str, Signature]) -> PredictRequest:
    if not isinstance(request, dict):
        raise DataError("the request must be a JSON object with 'instances' or 'inputs'")
    name = request.get("signature_name") or DEFAULT_SIGNATURE
    if not isinstance(name, str) or name not in signatures:
        known = ", ".join(sorted(signatures))
        raise DataError(f"Serving signature name: {name!r} not found; there are: {known}")
    specs = signatures[name].inputs
    by_row = "instances" in request
    if by_row == ("inputs" in request):
        raise DataError("give either 'instances' or 'inputs', and not both")
    parse = _parse_instances if by_row else _parse_inputs
    columns = parse(request["instances" if by_row else "inputs"], specs)
    arrays = {key: _parse_array(key, columns[key], spec) for key, spec in specs.items()}
    counts = {key: len(array) for key, array in arrays.items() if array.ndim}
    if len(set(counts.values())) > 1:
        raise DataError(f"the inputs have different numbers of rows: {counts}")
    return PredictRequest(name, arrays, next(iter(counts.values()), 1), by_row)


def format_response(request: PredictRequest, outputs: NamedArrays) -> bytes:
    """Return the body of the response: plain values for one output, otherwise by name."""
    # TensorFlow Serving encodes outputs whose names end with _bytes as base64.
    columns = {n: as_json(v, as_base64=n.endswith("_bytes")) for n, v in outputs.items()}
    only = next(iter(columns.values())) if len(columns) == 1 else None
    values = columns if only is None else only
    if request.by_row and only is None:
        rows = zip(*columns.values(), strict=True)
        values = [dict(zip(columns, row, strict=True)) for row in rows]
    return json.dumps({"predictions" if request.by_row else "outputs": values}).encode()


def format_status(version: int) -> bytes:
    error = {"error_code": "OK", "error_message": ""}
    status = {"version": str(version), "state": "AVAILABLE", "status": error}
    return json.dumps({"model_version_status": [status]}, indent=1).encode()


def format_metadata(name: str, version: int, signatures: Mapping[str, Signature]) -> bytes:
    described = {
        key: {
            "inputs": {n: _describe(n, spec) for n, spec in signature.inputs.items()},
            "outputs": {n: _describe(n, spec) for n, spec in signature.outputs.items()},
            "method_name": "tensorflow/serving/predict",
        }
        for key, signature in signatures.items()
    }
    spec = {"name": name, "signature_name": "", "version": str(version)}
    metadata = {"signature_def": {"signature_def": described}}
    return json.dumps({"model_spec": spec, "metadata": metadata}, indent=1).encode()


def _parse_instances(rows: object, specs: NamedSpecs) -> Mapping[str, object]:
    if not isinstance(rows, list) or not rows:
        raise DataError("'instances' must be a list with at least one instance")
    named = [_is_named(row) for row in rows]
    if any(named) != all(named):
        raise DataError("'instances' must be all objects, or all values")
    if not named[0]:
        return {_find_only_name(specs): rows}
    for number, row in enumerate(rows):
        if set(row) != set(specs):
            known = sorted(specs)
            raise DataError(f"instance {number} has {sorted(row)}, but the inputs are {known}")
    return {name: [row[name] for row in rows] for name in specs}


def _parse_inputs(inputs: object, specs: NamedSpecs) -> Mapping[str, object]:
    if not isinstance(inputs, dict) or not _is_named(inputs):
        return {_find_only_name(specs): inputs}
    if set(inputs) != set(specs):
        raise DataError(f"'inputs' has {sorted(inputs)}, but the inputs are {sorted(specs)}")
    return inputs


def _is_named(value: object) -> bool:
    """Whether a value holds inputs by name, and is not encoded bytes."""
    return isinstance(value, dict) and set(value) != {"b64"}


def _find_only_name(specs: NamedSpecs) -> str:
    if len(specs) != 1:
        raise DataError(f"the model has several inputs, name them: {', '.join(specs)}")
    return next(iter(specs))


def _parse_array(name: str, value: object, spec: TensorSpec) -> Array:
    array = to_array(name, value, spec.dtype)
    if not spec.shape.is_compatible_with(array.shape):
        wanted = ["?" if size is None else size for size in spec.shape]
        raise DataError(f"{name} has the shape {list(array.shape)}, but must be {wanted}")
    return array


def _describe(name: str, spec: TensorSpec) -> Mapping[str, object]:
    rank = spec.shape.rank
    sizes = [] if rank is None else [-1 if size is None else size for size in spec.shape]
    dtype = f"DT_{_DTYPES.get(spec.dtype.name, spec.dtype.name.upper())}"
    dimensions = [{"size": str(size), "name": ""} for size in sizes]
    shape = {"dim": dimensions, "unknown_rank": rank is None}
    return {"dtype": dtype, "tensor_shape": shape, "name": f"{name}:0"}
