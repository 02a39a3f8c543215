"""Predictions as JSON lines or Parquet."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from phalanx.errors import ConfigurationError

Arrays = Mapping[str, np.ndarray[Any, Any]]


class Writer(Protocol):
    """Takes the predictions of one batch after the other."""

    def write(self, arrays: Arrays, keys: Sequence[Mapping[str, Any]]) -> None:
        """Add a row for each example."""


@contextmanager
def open_writer(out: str, stdout: IO[str]) -> Iterator[Writer]:
    """By the name's ending; `-` is JSON lines on standard output. Nothing half done is left."""
    if out == "-":
        yield LinesWriter(stdout)
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
                yield LinesWriter(file)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


class LinesWriter:
    """One JSON object a row."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, arrays: Arrays, keys: Sequence[Mapping[str, Any]]) -> None:
        """Add a line for each example."""
        lists = {name: as_json(values) for name, values in arrays.items()}
        for index in range(_count(arrays)):
            row = {**(keys[index] if keys else {}), **{n: v[index] for n, v in lists.items()}}
            self._file.write(json.dumps(row) + "\n")


class ParquetWriter:
    """Columns, nested as the outputs are; needs pyarrow."""

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

    def write(self, arrays: Arrays, keys: Sequence[Mapping[str, Any]]) -> None:
        """Add a row group."""
        columns: dict[str, Any] = {}
        for name in keys[0] if keys else ():
            columns[name] = [key[name] for key in keys]
        for name, values in arrays.items():
            columns[name] = values if values.ndim == 1 else values.tolist()
        table = self._pyarrow.table(columns)
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table.cast(self._writer.schema))

    def close(self) -> None:
        """Write the end of the file."""
        if self._writer is not None:
            self._writer.close()


def as_json(values: np.ndarray[Any, Any]) -> Any:
    """Nested lists; bytes that are no text become {"b64": ...}."""
    listed = values.tolist()
    return _text(listed) if values.dtype == object else listed


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(inner) for inner in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    return value


def _count(arrays: Arrays) -> int:
    return len(next(iter(arrays.values())))
