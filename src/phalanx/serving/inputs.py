"""Files as batches of a model's inputs: TFRecords, pictures, CSV, JSON lines."""

from __future__ import annotations

import base64
import binascii
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.records import read_chunks
from phalanx.train.export.signatures import EXAMPLES, RAW, Signature

RECORDS = (".tfrecord", ".tfrecords", ".tfrec", ".records")
PICTURES = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class Batch:
    """Inputs for one call; `keys` say of each row where it came from."""

    signature: str
    tensors: Mapping[str, Any]
    rows: int
    keys: Sequence[Mapping[str, Any]] = field(default_factory=list)


def read_batches(
    paths: Sequence[str], signatures: Mapping[str, Signature], size: int, raw_pixels: bool = False
) -> Iterator[Batch]:
    """All rows of all files in order, in batches."""
    for path in paths:
        if not Path(path).is_file():
            raise ConfigurationError(f"there is no file {path}")
        _kind(path)
    pictures = [path for path in paths if _kind(path) in PICTURES]
    if pictures and len(pictures) == len(paths):
        yield from _read_pictures(pictures, signatures, size, raw_pixels)
        return
    for path in paths:
        kind = _kind(path)
        if kind in RECORDS:
            yield from _read_records(path, signatures, size)
        elif kind == ".csv":
            yield from _in_batches(_read_csv(path, signatures[RAW]), signatures[RAW], size)
        elif kind in LINES:
            yield from _in_batches(_read_lines(path, signatures[RAW]), signatures[RAW], size)
        else:
            yield from _read_pictures([path], signatures, size, raw_pixels)


def count_rows(paths: Sequence[str]) -> int | None:
    """How many rows there are, where that is known at once."""
    return len(paths) if all(_kind(path) in PICTURES for path in paths) else None


def _kind(path: str) -> str:
    name = path.lower().removesuffix(".gz")
    for kind in RECORDS if path.endswith(".gz") else (*RECORDS, *PICTURES, *LINES, ".csv"):
        if name.endswith(kind) or (kind in RECORDS and f"{kind}-" in name):
            return kind
    raise ConfigurationError(
        f"{path}: its name must end with .tfrecord, .csv, .jsonl, .jpg, .png, .gif or .bmp"
    )


def _read_records(path: str, signatures: Mapping[str, Signature], size: int) -> Iterator[Batch]:
    if EXAMPLES not in signatures:
        raise ConfigurationError(
            "the model takes no Examples, for the shapes of its inputs are not known: write "
            "example_features() and preprocess() in the experiment"
        )
    for chunk in read_chunks(path, most=size):
        yield Batch(EXAMPLES, {"examples": tf.constant(list(chunk))}, len(chunk))


def _read_pictures(
    paths: Sequence[str], signatures: Mapping[str, Signature], size: int, raw_pixels: bool
) -> Iterator[Batch]:
    name, spec = _only_input(signatures[RAW], "pictures")
    if spec.shape.rank != 4 or not spec.shape[1:].is_fully_defined():
        raise ConfigurationError(
            f"the input {name} has the shape {list(spec.shape)}: pictures need [None, height, "
            "width, channels]"
        )
    height, width, channels = spec.shape[1:]
    scale = 1.0 if raw_pixels or not spec.dtype.is_floating else 1 / 255
    for start in range(0, len(paths), size):
        chosen = paths[start : start + size]
        pixels = []
        for path in chosen:
            try:
                image = tf.io.decode_image(
                    tf.io.read_file(path), channels=channels, expand_animations=False
                )
            except tf.errors.InvalidArgumentError as error:
                raise DataError(f"{path} is no picture: {error.message}") from None
            pixels.append(tf.image.resize(tf.cast(image, tf.float32) * scale, [height, width]))
        batch = tf.cast(tf.stack(pixels), spec.dtype)
        yield Batch(RAW, {name: batch}, len(chosen), [{"file": path} for path in chosen])


def _read_csv(path: str, signature: Signature) -> Iterator[dict[str, Any]]:
    """A column for each input; all columns in order are the one input of a model that has one."""
    with Path(path).open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or []
        is_named = all(name in columns for name in signature.inputs)
        only = next(iter(signature.inputs)) if len(signature.inputs) == 1 else None
        if not is_named and only is None:
            missing = ", ".join(sorted(set(signature.inputs) - set(columns)))
            raise ConfigurationError(f"{path} has no column for {missing}")
        for number, row in enumerate(reader, 2):
            try:
                if is_named:
                    found = {
                        name: row[name] if spec.dtype == tf.string else _number(row[name], spec)
                        for name, spec in signature.inputs.items()
                    }
                else:
                    spec = signature.inputs[str(only)]
                    found = {str(only): [_number(row[name], spec) for name in columns]}
            except (ValueError, TypeError) as error:
                raise DataError(f"{path}, line {number}: {error}") from None
            yield found


def _number(text: str, spec: Any) -> float:
    """A float would not hold every whole number."""
    return int(text) if spec.dtype.is_integer else float(text)


def _read_lines(path: str, signature: Signature) -> Iterator[dict[str, Any]]:
    """An object with the inputs by name; or the value itself, if there is one input."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                row = {_only_input(signature, f"{path}, line {number}")[0]: row}
            missing = set(signature.inputs) - set(row)
            if missing:
                raise DataError(f"{path}, line {number} lacks {', '.join(sorted(missing))}")
            yield {name: row[name] for name in signature.inputs}


def _in_batches(rows: Iterator[dict[str, Any]], signature: Signature, size: int) -> Iterator[Batch]:
    held: list[dict[str, Any]] = []
    for row in rows:
        held.append(row)
        if len(held) == size:
            yield _stack(held, signature)
            held = []
    if held:
        yield _stack(held, signature)


def _stack(rows: list[dict[str, Any]], signature: Signature) -> Batch:
    tensors = {}
    for name, spec in signature.inputs.items():
        values = to_array(name, [row[name] for row in rows], spec.dtype)
        if values.ndim == spec.shape.rank - 1:
            values = values[..., np.newaxis]
        if not spec.shape.is_compatible_with(values.shape):
            raise DataError(
                f"{name} has the shape {list(values.shape[1:])} in the file, but the model takes "
                f"{list(spec.shape[1:])}"
            )
        tensors[name] = tf.constant(values)
    return Batch(RAW, tensors, len(rows))


def to_array(name: str, value: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """What JSON holds, as an input's type has it; no number is changed on the way."""
    try:
        if dtype == tf.string:
            return np.array(_to_bytes(value), object)
        array = np.array(value)
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


def _to_bytes(value: Any) -> Any:
    """Strings as bytes; {"b64": ...} as what it stands for."""
    if isinstance(value, list):
        return [_to_bytes(inner) for inner in value]
    if isinstance(value, dict) and set(value) == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError) as error:
            raise DataError(f"'b64' is not base64: {error}") from None
    if isinstance(value, str):
        return value.encode()
    raise DataError(f"{value!r} is neither a string nor {{'b64': ...}}")


def _only_input(signature: Signature, what: str) -> tuple[str, Any]:
    if len(signature.inputs) != 1:
        raise ConfigurationError(
            f"{what}: the model has the inputs {', '.join(signature.inputs)}; give them by name"
        )
    return next(iter(signature.inputs.items()))
