from __future__ import annotations

from datetime import date

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
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (date(2026, 1, 31), "2026-01-31"),
        ("a/b=c%d:e", "a%2Fb%3Dc%25d%3Ae"),
        ("Zürich x", "Zürich x"),
        ("[1]{2}^'\"#*?\\", "%5B1%5D%7B2}%5E%27%22%23%2A%3F%5C"),
        (None, NULL),
        ("", NULL),
    ],
)
def test_partition_path_equals_that_of_spark(value: object, text: str) -> None:
    assert partition_path({"c": value}) == f"c={text}"
    expected = None if value in (None, "") else str(value).replace("True", "true")
    assert partition_values(f"c={text}") == {"c": expected}


def test_directories_without_values_are_skipped() -> None:
    assert partition_values("year/a=1/=x/b%3D=2") == {"a": "1", "b=": "2"}


def test_bytes_cannot_be_partition_values() -> None:
    with pytest.raises(DataError, match="cannot hold bytes"):
        partition_path({"c": b"x"})


@pytest.mark.parametrize(
    ("texts", "type_"),
    [
        (["1", "-2", None], pa.int32()),
        (["1", "3000000000"], pa.int64()),
        (["1", "99999999999999999999"], pa.float64()),
        (["1", "2.5", "1e3"], pa.float64()),
        (["2026-01-31"], pa.date32()),
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


def test_different_partition_columns_are_an_error() -> None:
    with pytest.raises(DataError, match="directories for a, others in directories for no column"):
        partition_types([{"a": "1"}, {}])


def test_partition_value_must_fit_the_requested_type() -> None:
    with pytest.raises(DataError, match="day=x does not fit the type int32"):
        partition_value("day", "x", pa.int32())
