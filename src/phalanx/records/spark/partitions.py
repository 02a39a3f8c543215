"""Values of columns in the names of directories, as Spark and Hive write them: `country=DE`.

>>> partition_path({"country": "DE", "day": "2026/01"})
'country=DE/day=2026%2F01'
>>> partition_values("country=DE/day=2026%2F01")
{'country': 'DE', 'day': '2026/01'}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from phalanx.errors import DataError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""What stands for null, and for the empty text."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

Values = dict[str, str | None]


def partition_path(values: Mapping[str, Any]) -> str:
    """The directories for rows with these values."""
    return "/".join(f"{_escape(name)}={_to_text(value)}" for name, value in values.items())


def partition_values(path: str) -> Values:
    """The values in a path's directories; those that name no column are passed over."""
    values: Values = {}
    for directory in path.split("/"):
        name, equals, text = directory.partition("=")
        if equals and name:
            values[unquote(name)] = None if text == NULL else unquote(text)
    return values


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        raise DataError("a partition column cannot hold bytes: make it text or numbers")
    return NULL if value is None or value == "" else _escape(str(value))


def partition_types(values: Iterable[Values]) -> dict[str, pa.DataType]:
    """The columns that files' directories make, and types that fit all their values.

    As in Spark: int, long, double, date, and text for the rest.
    """
    found: dict[str, list[str]] = {}
    names: tuple[str, ...] | None = None
    for each in values:
        if names is not None and tuple(each) != names:
            raise DataError(
                f"some files lie in directories for {_list(names)}, others in directories for "
                f"{_list(each)}: read them one after the other, or give the option basePath"
            )
        names = tuple(each)
        for name, text in each.items():
            if text is not None:
                found.setdefault(name, []).append(text)
    return {name: _infer_type(found.get(name, [])) for name in names or ()}


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
    """A value out of a directory's name, as the column's type has it."""
    try:
        return pa.scalar(text, pa.string()).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"the directory {name}={text} is no value for the type {type_}") from None
