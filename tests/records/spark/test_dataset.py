from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phalanx import records
from phalanx.errors import DataError, RecordError
from phalanx.records.spark.columns import RecordType
from phalanx.records.spark.dataset import find_dataset, infer_dataset, read_split
from phalanx.records.spark.options import Options
from phalanx.records.spark.splits import plan_splits
from phalanx.records.spark.task import check_columns, write_files


def read(options: Options, columns: pa.Schema | None = None) -> list[dict[str, Any]]:
    files = find_dataset(options)
    if columns is None:
        columns = infer_dataset(options, files)
    return [
        row
        for task in plan_splits(files, options.max_partition_bytes)
        for split in task
        for batch in read_split(split, columns, options.record_type)
        for row in batch.to_pylist()
    ]


ROWS: list[dict[str, Any]] = [
    {"day": 1, "country": "DE", "x": [1, 2]},
    {"day": 1, "country": None, "x": [3]},
    {"day": 2, "country": "A/B", "x": []},
]


def write(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> list[str]:
    batch = pa.RecordBatch.from_pylist(rows)
    return write_files([batch], str(tmp_path / "d"), "part", Options(**options), always=True)


def test_partition_columns_come_back(tmp_path: Path) -> None:
    names = write(tmp_path, ROWS, partition_by=("day", "country"))
    assert names == [
        "day=1/country=DE/part-c000.tfrecord",
        "day=1/country=__HIVE_DEFAULT_PARTITION__/part-c001.tfrecord",
        "day=2/country=A%2FB/part-c002.tfrecord",
    ]
    found = read(Options(paths=(str(tmp_path / "d"),)))
    assert sorted(found, key=lambda row: str(row["x"])) == sorted(
        [{"x": row["x"], "day": row["day"], "country": row["country"]} for row in ROWS],
        key=lambda row: str(row["x"]),
    )


def test_partition_columns_have_the_types_that_were_asked_for(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:1], partition_by=("day",))
    columns = pa.schema([("day", pa.string()), ("x", pa.list_(pa.int32()))])
    assert read(Options(paths=(str(tmp_path / "d"),)), columns) == [{"day": "1", "x": [1, 2]}]


def test_below_a_base_path_all_partition_columns_come_back(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:1], partition_by=("day",))
    paths = (str(tmp_path / "d" / "day=*"),)
    assert "day" not in read(Options(paths=paths))[0]
    assert read(Options(paths=paths, base_path=str(tmp_path / "d")))[0]["day"] == 1
    with pytest.raises(DataError, match="is not in the basePath"):
        read(Options(paths=paths, base_path="/elsewhere"))


def test_some_columns_and_none(tmp_path: Path) -> None:
    write(tmp_path, ROWS, partition_by=("day",))
    options = Options(paths=(str(tmp_path / "d"),), columns=("day", "country"))
    assert read(options)[0] == {"day": 1, "country": "DE"}
    assert read(options, pa.schema([])) == [{}, {}, {}]
    with pytest.raises(DataError, match="there is no column z: there are country, x, day"):
        read(Options(paths=options.paths, columns=("z",)))


def test_counting_looks_into_no_message(tmp_path: Path) -> None:
    with records.RecordWriter(tmp_path / "d" / "a") as writer:
        writer.write_all([b"\xff no message"] * 3)
    options = Options(paths=(str(tmp_path),))
    assert read(options, pa.schema([])) == [{}, {}, {}]
    with pytest.raises(RecordError, match="the message is damaged"):
        read(options, pa.schema([("x", pa.int64())]))


def test_records_as_they_are(tmp_path: Path) -> None:
    rows = [{"byteArray": b"one"}, {"byteArray": b""}]
    write(tmp_path, rows, record_type=RecordType.BYTE_ARRAY)
    options = Options(paths=(str(tmp_path),), record_type=RecordType.BYTE_ARRAY)
    assert read(options) == rows


def test_a_saved_schema_is_taken(tmp_path: Path) -> None:
    write(tmp_path, [{"x": 1}])
    schema = records.Schema((records.Feature("x", records.Kind.INT64, (None,)),))
    schema.save(tmp_path / "d" / "schema.json")
    assert read(Options(paths=(str(tmp_path / "d"),))) == [{"x": [1]}]


def test_a_task_without_rows_writes_a_file_only_if_it_must(tmp_path: Path) -> None:
    for always, names in ((True, ["part-c000.tfrecord"]), (False, [])):
        assert write_files([], str(tmp_path), "part", Options(), always=always) == names


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def batches() -> Any:
        yield pa.RecordBatch.from_pylist(ROWS)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_files(batches(), str(tmp_path), "p", Options(partition_by=("day",)), always=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(partition_by=("z",)), "there is no column z to partition by: there are a, b"),
        (Options(partition_by=("a", "b")), "every column is a partition column"),
        (Options(record_type=RecordType.BYTE_ARRAY), "one column, of binary"),
    ],
)
def test_what_cannot_be_written_is_refused_before_it_begins(options: Options, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_columns(pa.schema([("a", pa.int64()), ("b", pa.int64())]), options)


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give the files to read"):
        read(Options())
    with pytest.raises(DataError, match=r"there are no files in .* give a schema"):
        read(Options(paths=(str(tmp_path),)))
    records.write_examples(tmp_path / "s", [{"q": [[1]]}])
    with pytest.raises(DataError, match="holds SequenceExamples: set the option recordType"):
        read(Options(paths=(str(tmp_path),)))
    records.write_examples(tmp_path / "s", [{"q": b"\xff"}])
    with pytest.raises(DataError, match=r"/s: feature 'q' holds bytes that are not text"):
        read(Options(paths=(str(tmp_path),)))
