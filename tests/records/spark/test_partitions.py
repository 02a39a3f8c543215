from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from phalanx.errors import DataError
from phalanx.records.spark.partitions import (
    NULL,
    partition_path,
    partition_types,
    partition_value,
    partition_values,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("DE", "DE"),
        ("a/b=c%d:e", "a%2Fb%3Dc%25d%3Ae"),
        ("Zürich x", "Zürich x"),
        ("[1]{2}^'\"#*?\\", "%5B1%5D%7B2}%5E%27%22%23%2A%3F%5C"),
        (None, NULL),
        ("", NULL),
    ],
)
def test_partition_path_equals_that_of_spark(value: str | None, text: str) -> None:
    assert partition_path({"c": value}) == f"c={text}"
    assert partition_values(f"c={text}") == {"c": value or None}


def test_directories_without_values_are_skipped() -> None:
    assert partition_values("year/a=1/=x/b%3D=2") == {"a": "1", "b=": "2"}


@pytest.mark.parametrize(
    ("texts", "type_"),
    [
        (["1", "-2", "+007", None], pa.int32()),
        (["1", "3000000000"], pa.int64()),
        (["99999999999999999999"], pa.decimal128(20, 0)),
        (["1", "99999999999999999999"], pa.decimal128(20, 0)),
        (["1", "1e3"], pa.decimal128(10, 0)),
        (["1", "2.5", "NaN", "-Infinity", "1d"], pa.float64()),
        (["3000000000", "2.5"], pa.string()),
        (["1e3", "2.5"], pa.string()),
        (["9" * 39], pa.float64()),
        (["2026-01-31"], pa.date32()),
        (["2026-01-31 10:11:12", "2026-01-31 10:11:12.5"], pa.timestamp("us")),
        (["2026-01-31 10:11:12", "2026-01-31"], pa.timestamp("us")),
        (["2026-01-31 10:11:12.123456"], pa.string()),
        (["2026-02-31"], pa.string()),
        (["1", "x"], pa.string()),
        (["nan"], pa.string()),
        (["true"], pa.string()),
        ([None], pa.string()),
    ],
)
def test_partition_type_fits_all_values(texts: list[str | None], type_: pa.DataType) -> None:
    assert partition_types({"c": text} for text in texts) == {"c": type_}
    for text in texts:
        assert partition_value("c", text, type_).is_valid == (text is not None)


def test_values_are_parsed_as_spark_parses_them() -> None:
    assert partition_value("c", "+5", pa.int32()).as_py() == 5
    assert partition_value("c", " 1.5f ", pa.float64()).as_py() == 1.5
    assert partition_value("c", "1e3", pa.decimal128(4, 0)).as_py() == Decimal(1000)
    time = partition_value("c", "2026-01-31 10:11:12.5", pa.timestamp("us")).as_py()
    assert time == datetime(2026, 1, 31, 10, 11, 12, 500_000)


def test_different_partition_columns_are_an_error() -> None:
    with pytest.raises(DataError, match="directories for a, others in directories for no column"):
        partition_types([{"a": "1"}, {}])


@pytest.mark.parametrize("text", ["9" * 38, "-" + "9" * 29, "1." + "5" * 30])
def test_long_decimals_are_exact(text: str) -> None:
    digits = Decimal(text).as_tuple()
    assert isinstance(digits.exponent, int)
    type_ = pa.decimal128(len(digits.digits), -digits.exponent)
    assert partition_value("c", text, type_).as_py() == Decimal(text)


@pytest.mark.parametrize("type_", [pa.int32(), pa.decimal128(4, 0), pa.date32(), pa.float64()])
def test_partition_value_must_fit_the_requested_type(type_: pa.DataType) -> None:
    with pytest.raises(DataError, match="day=x does not fit the type"):
        partition_value("day", "x", type_)


def test_time_without_a_zone_does_not_fit_a_timestamp_with_one() -> None:
    with pytest.raises(DataError, match="read it as timestamp_ntz"):
        partition_value("day", "2026-01-31 10:11:12", pa.timestamp("us", "UTC"))
