"""Partition columns, which Spark stores as the names of directories, as in Hive.

>>> partition_path({"country": "DE", "day": "2026/01"})
'country=DE/day=2026%2F01'
>>> partition_values("country=DE/day=2026%2F01")
{'country': 'DE', 'day': '2026/01'}

The types of the columns are inferred from these names by the rules of Spark, with these exceptions:
a time is a timestamp without a time zone, because a data source is not told the time zone of the
session in which the time was written; a time of day, a hexadecimal float and a column of nulls are
strings.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Context, Decimal
from urllib.parse import unquote

import pyarrow as pa

from phalanx.errors import DataError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name for null and for the empty string."""

PartitionValues = dict[str, str | None]

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# What Java parses as a double.
_DOUBLE = re.compile(rf"\s*(?P<number>{_NUMBER.pattern}|[+-]?(NaN|Infinity))[dDfF]?\s*")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(rf"{_DATE.pattern} \d{{2}}:\d{{2}}:\d{{2}}(\.\d)?")
_TIMESTAMP = pa.timestamp("us")
_MOST_DIGITS = 38
# By default, Python computes with 28 digits.
_EXACT = Context(prec=_MOST_DIGITS)


def partition_path(values: Mapping[str, str | None]) -> str:
    """The directories for values that Spark has converted to text."""
    return "/".join(f"{_escape(name)}={_escape(text or NULL)}" for name, text in values.items())


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


def check_partition_columns(partition_by: Iterable[str], columns: list[str]) -> None:
    missing = [name for name in partition_by if name not in columns]
    if missing:
        raise DataError(f"there is no column {', '.join(missing)} to partition by: there are "
                        f"{', '.join(columns)}")  # fmt: skip


def partition_types(values: Iterable[PartitionValues]) -> dict[str, pa.DataType]:
    """The partition columns, each with the type that fits all of its values."""
    found: dict[str, list[str]] = {}
    names: tuple[str, ...] | None = None
    for each in values:
        if names is not None and tuple(each) != names:
            one, other = (", ".join(columns) or "no column" for columns in (names, each))
            raise DataError(
                f"some files are in directories for {one}, others in directories for {other}: "
                "read them separately, or set the option basePath"
            )
        names = tuple(each)
        for name, text in each.items():
            if text is not None:
                found.setdefault(name, []).append(text)
    return {name: _infer_type(found.get(name, [])) for name in names or ()}


def _infer_type(texts: list[str]) -> pa.DataType:
    types = {_type_of(text) for text in texts}
    if not types:
        return pa.string()
    if len(types) == 1:
        return types.pop()
    digits = [_digits_of(type_) for type_ in types]
    if None not in digits:
        largest = max(found for found in digits if found is not None)
        is_decimal = any(map(pa.types.is_decimal, types))
        return pa.decimal128(largest, 0) if is_decimal else pa.int64()
    if types == {pa.int32(), pa.float64()}:
        return pa.float64()
    return _TIMESTAMP if types == {pa.date32(), _TIMESTAMP} else pa.string()


def _digits_of(type_: pa.DataType) -> int | None:
    """How many digits a decimal needs for the integers of a type."""
    if pa.types.is_decimal(type_):
        return int(type_.precision)
    return {pa.int32(): 10, pa.int64(): 20}.get(type_)


def _type_of(text: str) -> pa.DataType:
    if _INTEGER.fullmatch(text):
        number = int(text)
        for type_, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if -(2**bits) <= number < 2**bits:
                return type_
    if _NUMBER.fullmatch(text):
        _, figures, exponent = Decimal(text).as_tuple()
        assert isinstance(exponent, int)
        if exponent >= 0 and len(figures) + exponent <= _MOST_DIGITS:
            return pa.decimal128(len(figures) + exponent, 0)
    if _DOUBLE.fullmatch(text):
        return pa.float64()
    for pattern, type_ in ((_DATE, pa.date32()), (_TIME, _TIMESTAMP)):
        if pattern.fullmatch(text) and _is_time(text):
            return type_
    return pa.string()


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def partition_value(name: str, text: str | None, type_: pa.DataType) -> pa.Scalar:
    """A value from the name of a directory, in the type of its column."""
    try:
        return pa.scalar(None if text is None else _parse(text, type_), type_)
    except (pa.ArrowException, ArithmeticError, ValueError):
        hint = ": read it as timestamp_ntz" if getattr(type_, "tz", None) else ""
        raise DataError(
            f"the directory {name}={text} does not fit the type {type_}{hint}"
        ) from None


def _parse(text: str, type_: pa.DataType) -> object:
    if pa.types.is_integer(type_):
        return int(text)
    if pa.types.is_decimal(type_):
        return Decimal(text).quantize(Decimal(1).scaleb(-type_.scale), context=_EXACT)
    if pa.types.is_floating(type_) and (found := _DOUBLE.fullmatch(text)):
        return float(found["number"])
    if type_ == _TIMESTAMP:
        return datetime.fromisoformat(text)
    if pa.types.is_date(type_):
        return date.fromisoformat(text)
    return pa.scalar(text, pa.string()).cast(type_).as_py()
