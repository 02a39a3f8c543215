"""Batches of a model's inputs from files: TFRecords, images, CSV, JSON lines."""

import base64
import binascii
import csv
import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.records import read_chunks
from phalanx.train.export.signatures import DEFAULT_SIGNATURE, EXAMPLES_SIGNATURE, Signature
from phalanx.train.types import Array, DType, NamedTensors, TensorSpec

_RECORDS = (".tfrecord", ".tfrecords", ".tfrec", ".records")
_IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
_LINES = (".jsonl", ".ndjson", ".json")
_CSV = (".csv",)

Suffixes = tuple[str, ...]
Row = Mapping[str, object]


@dataclass(frozen=True)
class InputBatch:
    """The inputs of one call; `keys` tell which file each row comes from, if each has its own."""

    signature: str
    tensors: NamedTensors
    rows: int
    keys: Sequence[Mapping[str, str]] = field(default_factory=list)


def read_batches(
    paths: Sequence[str], signatures: Mapping[str, Signature], size: int, raw_pixels: bool = False
) -> Iterator[InputBatch]:
    """Read the rows of all files, in order, in batches of at most `size` rows."""
    for path in paths:
        if not Path(path).is_file():
            raise ConfigurationError(f"there is no file {path}")
        _find_format(path)
    for suffixes, group in groupby(paths, _find_format):
        if suffixes is _IMAGES:
            yield from _read_images(list(group), signatures[DEFAULT_SIGNATURE], size, raw_pixels)
            continue
        for path in group:
            if suffixes is _RECORDS:
                yield from _read_records(path, signatures, size)
                continue
            signature = signatures[DEFAULT_SIGNATURE]
            rows = (_read_csv if suffixes is _CSV else _read_lines)(path, signature)
            while batch := list(islice(rows, size)):
                yield _stack(batch, signature)


def count_rows(paths: Sequence[str]) -> int | None:
    """Return the number of rows, if it is known without reading the files."""
    return len(paths) if all(_find_format(path) is _IMAGES for path in paths) else None


def _find_format(path: str) -> Suffixes:
    """Return the suffixes of the file's format. Only records may be compressed or numbered."""
    name = path.lower().removesuffix(".gz")
    if name.endswith(_RECORDS) or any(f"{suffix}-" in name for suffix in _RECORDS):
        return _RECORDS
    for suffixes in () if path.endswith(".gz") else (_IMAGES, _LINES, _CSV):
        if name.endswith(suffixes):
            return suffixes
    known = ".tfrecord, .csv, .jsonl, .jpg, .png, .gif or .bmp"
    raise ConfigurationError(f"{path}: its name must end with {known}")


def _read_records(
    path: str, signatures: Mapping[str, Signature], size: int
) -> Iterator[InputBatch]:
    if EXAMPLES_SIGNATURE in signatures:
        name = EXAMPLES_SIGNATURE
    elif _takes_examples(signatures[DEFAULT_SIGNATURE]):
        name = DEFAULT_SIGNATURE
    else:
        what = "the model does not take Examples, because the shapes of its inputs are not known"
        fix = "write example_features() and preprocess() in the experiment"
        raise ConfigurationError(f"{what}: {fix}")
    [only] = signatures[name].inputs
    for chunk in read_chunks(path, most=size):
        yield InputBatch(name, {only: tf.constant(list(chunk))}, len(chunk))


_EXAMPLES_HINT = ": if the model takes serialized Examples, predict TFRecord files"


def _takes_examples(signature: Signature) -> bool:
    """Whether the only input is a vector of strings, as in the exports of an Estimator."""
    kinds = [(spec.dtype, spec.shape.rank) for spec in signature.inputs.values()]
    return kinds == [(tf.string, 1)]


def _read_images(
    paths: Sequence[str], signature: Signature, size: int, raw_pixels: bool
) -> Iterator[InputBatch]:
    name, spec = _find_only_input(signature, "images")
    if spec.shape.rank != 4 or not spec.shape[1:].is_fully_defined():
        given = f"the input {name} has the shape {list(spec.shape)}"
        raise ConfigurationError(f"{given}: images need [None, height, width, channels]")
    height, width, channels = spec.shape[1:]
    scale = 1.0 if raw_pixels or not spec.dtype.is_floating else 1 / 255
    for start in range(0, len(paths), size):
        chosen = paths[start : start + size]
        pixels = []
        for path in chosen:
            try:
                data = tf.io.read_file(path)
                image = tf.io.decode_image(data, channels=channels, expand_animations=False)
            except tf.errors.InvalidArgumentError as error:
                raise DataError(f"{path} is not an image: {error.message}") from None
            pixels.append(tf.image.resize(tf.cast(image, tf.float32) * scale, [height, width]))
        batch = tf.cast(tf.stack(pixels), spec.dtype)
        keys = [{"file": path} for path in chosen]
        yield InputBatch(DEFAULT_SIGNATURE, {name: batch}, len(chosen), keys)


def _read_csv(path: str, signature: Signature) -> Iterator[Row]:
    """Read a column for each input; or all columns as one vector, if there is one input."""
    inputs = signature.inputs
    with Path(path).open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or []
        missing = sorted(set(inputs) - set(columns))
        takes_examples = _takes_examples(signature)
        if missing and (len(inputs) > 1 or takes_examples):
            hint = _EXAMPLES_HINT if takes_examples else ""
            raise ConfigurationError(f"{path} has no column for {', '.join(missing)}{hint}")
        for number, row in enumerate(reader, 2):
            try:
                if missing:
                    [(only, spec)] = inputs.items()
                    yield {only: [_parse_number(row[name], spec) for name in columns]}
                    continue
                yield {
                    name: row[name] if spec.dtype == tf.string else _parse_number(row[name], spec)
                    for name, spec in inputs.items()
                }
            except (ValueError, TypeError) as error:
                raise DataError(f"{path}, line {number}: {error}") from None


def _parse_number(text: str, spec: TensorSpec) -> float:
    # A float does not hold every integer.
    return int(text) if spec.dtype.is_integer else float(text)


def _read_lines(path: str, signature: Signature) -> Iterator[Row]:
    """Read an object with the inputs by name; or the value itself, if there is one input."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                row = {_find_only_input(signature, f"{path}, line {number}")[0]: row}
            if missing := set(signature.inputs) - set(row):
                hint = _EXAMPLES_HINT if _takes_examples(signature) else ""
                raise DataError(f"{path}, line {number} lacks {', '.join(sorted(missing))}{hint}")
            yield row


def _stack(rows: Sequence[Row], signature: Signature) -> InputBatch:
    tensors = {}
    for name, spec in signature.inputs.items():
        values = to_array(name, [row[name] for row in rows], spec.dtype)
        if values.ndim == spec.shape.rank - 1:
            values = values[..., np.newaxis]
        if not spec.shape.is_compatible_with(values.shape):
            found = f"{name} has the shape {list(values.shape[1:])} in the file"
            raise DataError(f"{found}, but the model takes {list(spec.shape[1:])}")
        tensors[name] = tf.constant(values)
    return InputBatch(DEFAULT_SIGNATURE, tensors, len(rows))


def to_array(name: str, value: object, dtype: DType) -> Array:
    """Convert JSON values to an array of an input's dtype; no number may change."""
    try:
        if dtype == tf.string:
            return np.array(_to_bytes(value), object)
        array = np.array(value if _holds_numbers(value) else None)
        if array.dtype.kind not in "fiub":
            raise DataError(f"the values of {name} are not all numbers of at most 64 bits")
        if array.dtype.kind == "f" and dtype.is_integer:
            raise DataError(f"the values of {name} must be whole numbers")
        result = array.astype(dtype.as_numpy_dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"the values of {name} make no {dtype.name} tensor: {error}") from None
    if dtype.is_integer and not np.array_equal(result, array):
        raise DataError(f"the values of {name} are not all from {dtype.min} to {dtype.max}")
    return result


def _holds_numbers(value: object) -> bool:
    """Whether nested lists hold numbers only. NumPy would make all texts as long as the longest."""
    if not isinstance(value, list):
        return type(value) in _NUMBERS
    kinds = set(map(type, value))
    if list not in kinds:
        return kinds <= _NUMBERS
    return kinds <= {list, *_NUMBERS} and all(map(_holds_numbers, value))


_NUMBERS = frozenset({int, float, bool})


def _to_bytes(value: object) -> object:
    """Encode strings, and decode {"b64": ...}."""
    if isinstance(value, list):
        return [_to_bytes(inner) for inner in value]
    if isinstance(value, dict) and set(value) == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError) as error:
            raise DataError(f"'b64' is not base64: {error}") from None
    if isinstance(value, str):
        return value.encode()
    raise DataError(f"{reprlib.repr(value)} is neither a string nor {{'b64': ...}}")


def _find_only_input(signature: Signature, what: str) -> tuple[str, TensorSpec]:
    if len(signature.inputs) != 1:
        names = ", ".join(signature.inputs)
        raise ConfigurationError(f"{what}: the model has the inputs {names}; give them by name")
    return next(iter(signature.inputs.items()))
