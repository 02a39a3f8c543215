"""Predictions for the rows of files, written as JSON lines or Parquet."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.serving.inputs import InputBatch
from phalanx.train.export.signatures import Signature
from phalanx.train.types import Array, NamedArrays


class PredictionWriter(Protocol):
    """Writes the predictions of one batch after the other."""

    def write(self, arrays: NamedArrays, keys: Sequence[Mapping[str, str]]) -> None:
        """Write a row for each example; `keys` are further columns of it."""


def predict(
    signatures: Mapping[str, Signature],
    batches: Iterable[InputBatch],
    writer: PredictionWriter,
    notify: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write the predictions for all batches in order, and return the number of rows."""
    rows = 0
    for batch in batches:
        try:
            outputs = signatures[batch.signature].predict(batch.tensors)
        except tf.errors.InvalidArgumentError as error:
            raise DataError(
                f"the model failed on the batch that starts at row {rows}: {error.message}"
            ) from None
        writer.write(outputs, batch.keys)
        rows += batch.rows
        notify(rows)
    if not rows:
        raise DataError("there was nothing to predict: the files are empty")
    return rows


@contextmanager
def open_writer(out: str, stdout: IO[str]) -> Iterator[PredictionWriter]:
    """Open a writer for the suffix of a file; `-` writes JSON lines to standard output.

    The file appears only when it is complete.
    """
    if out == "-":
        yield JSONLinesWriter(stdout)
        return
    target = Path(out)
    unfinished = target.with_name(f".{target.name}.unfinished")
    if target.suffix not in (".jsonl", ".ndjson", ".json", ".parquet"):
        raise ConfigurationError(f"--out {out}: its name must end with .jsonl or .parquet")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
    except OSError as error:
        raise ConfigurationError(f"--out {out} cannot be written: {error.strerror}") from None
    try:
        if target.suffix == ".parquet":
            parquet = ParquetWriter(unfinished)
            try:
                yield parquet
            finally:
                parquet.close()
        else:
            with unfinished.open("w", encoding="utf-8") as file:
                yield JSONLinesWriter(file)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


class JSONLinesWriter:
    """Writes one JSON object for each row."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, arrays: NamedArrays, keys: Sequence[Mapping[str, str]]) -> None:
        lists = {name: as_json(values) for name, values in arrays.items()}
        for index in range(len(next(iter(arrays.values())))):
            row = {**(keys[index] if keys else {}), **{n: v[index] for n, v in lists.items()}}
            self._file.write(json.dumps(row) + "\n")


class ParquetWriter:
    """Writes a row group for each batch, with columns nested as the outputs are."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow  # noqa: PLC0415
            from pyarrow import parquet  # noqa: PLC0415
        except ImportError:
            raise ConfigurationError(
                "Parquet needs pyarrow: pip install pyarrow, or write .jsonl"
            ) from None
        self._pyarrow, self._parquet = pyarrow, parquet
        self._path = path
        self._writer: Any = None

    def write(self, arrays: NamedArrays, keys: Sequence[Mapping[str, str]]) -> None:
        columns: dict[str, object] = {
            name: [key[name] for key in keys] for name in (keys[0] if keys else ())
        }
        for name, values in arrays.items():
            columns[name] = values if values.ndim == 1 else values.tolist()
        table = self._pyarrow.table(columns)
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table.cast(self._writer.schema))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def as_json(values: Array, *, as_base64: bool = False) -> Any:
    """Return an array as nested lists.

    Bytes become text or, with `as_base64` or if they are not UTF-8, {"b64": ...}.
    """
    listed = values.tolist()
    return _encode(listed, as_base64) if values.dtype == object else listed


def _encode(value: object, as_base64: bool) -> object:
    if isinstance(value, list):
        return [_encode(inner, as_base64) for inner in value]
    if not isinstance(value, bytes):
        return value
    try:
        if not as_base64:
            return value.decode()
    except UnicodeDecodeError:
        pass
    return {"b64": base64.b64encode(value).decode()}
