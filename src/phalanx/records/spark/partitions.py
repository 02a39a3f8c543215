"""Partition columns: values in the names of directories, as in Hive: `country=DE`.

>>> partition_path({"country": "DE", "day": "2026/01"})
'country=DE/day=2026%2F01'
>>> partition_values("country=DE/day=2026%2F01")
{'country': 'DE', 'day': '2026/01'}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from urllib.parse import unquote

import pyarrow as pa

from phalanx.errors import DataError
from phalanx.records.types import Value

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name for null and for the empty string."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

PartitionValues = dict[str, str | None]


def partition_path(values: Mapping[str, Value]) -> str:
    """The directory for rows with these values."""
    return "/".join(f"{_escape(name)}={_to_text(value)}" for name, value in values.items())


def partition_values(path: str) -> PartitionValues:
    """The values in the directories of a path; directories without `=` are skipped."""
    values: PartitionValues = {}
    for directory in path.split("/"):
        name, equals, text = directory.partition("=")
        if equals and name:
            values[unquote(name)] = None if text == NULL else unquote(text)
    return values


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _to_text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        raise DataError("a partition column cannot hold bytes: make it text or numbers")
    return NULL if value is None or value == "" else _escape(str(value))


def partition_types(values: Iterable[PartitionValues]) -> dict[str, pa.DataType]:
    """The partition columns of files, with types that fit all their values.

    As in Spark these are int, long, double and date, and string for the rest.
    """
    found: dict[str, list[str]] = {}
    names: tuple[str, ...] | None = None
    for each in values:
        if names is not None and tuple(each) != names:
            raise DataError(
                f"some files are in directories for {_list(names)}, others in directories for "
                f"{_list(each)}: read them separately, or set the option basePath"
            )
        names = tuple(each)
        for name, text in each.items():
            if text is not None:
                found.setdefault(name, []).append(text)
    return {name: _infer_type(found.get(name, [])) for name in names or ()}


def check_partition_columns(partition_by: Iterable[str], columns: list[str]) -> None:
    """Check that the columns to partition by exist."""
    missing = [name for name in partition_by if name not in columns]
    if missing:
        raise DataError(f"there is no column {', '.join(missing)} to partition by: there are "
                        f"{', '.join(columns)}")  # fmt: skip


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "no column"


def _infer_type(texts: list[str]) -> pa.DataType:
    if texts and all(_INTEGER.fullmatch(text) for text in texts):
        largest = max(abs(int(text)) for text in texts)
        if largest < 2**63:
            return pa.int32() if largest < 2**31 else pa.int64()
    if texts and all(_NUMBER.fullmatch(text) for text in texts):
        return pa.float64()
    if texts and all(_is_date(text) for text in texts):
        return pa.date32()
    return pa.string()


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


def partition_value(name: str, text: str | None, type_: pa.DataType) -> pa.Scalar:
    """A value from the name of a directory, in the type of its column."""
    try:
        return pa.scalar(text, pa.string()).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"the directory {name}={text} does not fit the type {type_}") from None
