from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phalanx import records
from phalanx.errors import DataError, RecordError
from phalanx.records import RecordIndex, RecordWriter
from phalanx.records.framing import read_chunks
from phalanx.records.spark.columns import RecordType
from phalanx.records.spark.dataset import (
    OPEN_COST,
    Split,
    StreamOffset,
    find_dataset,
    infer_dataset,
    plan_splits,
    read_split,
    select_files_between,
)
from phalanx.records.spark.options import Options
from phalanx.records.spark.output import write_files
from phalanx.records.storage.listing import FoundFile, find_files


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
    {"day": "1", "country": "DE", "x": [1, 2]},
    {"day": "1", "country": None, "x": [3]},
    {"day": "2", "country": "A/B", "x": []},
]


def write(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> list[str]:
    batch = pa.RecordBatch.from_pylist(rows)
    return write_files([batch], str(tmp_path / "d"), "part", Options(**options), always=True)


def test_partition_columns_round_trip(tmp_path: Path) -> None:
    names = write(tmp_path, ROWS, partition_by=("day", "country"))
    assert names == [
        "day=1/country=DE/part-c000.tfrecord",
        "day=1/country=__HIVE_DEFAULT_PARTITION__/part-c001.tfrecord",
        "day=2/country=A%2FB/part-c002.tfrecord",
    ]
    found = read(Options(paths=(str(tmp_path / "d"),)))
    assert sorted(found, key=lambda row: str(row["x"])) == sorted(
        [{"x": row["x"], "day": int(row["day"]), "country": row["country"]} for row in ROWS],
        key=lambda row: str(row["x"]),
    )


def test_partition_columns_have_the_requested_types(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:1], partition_by=("day",))
    columns = pa.schema([("day", pa.string()), ("x", pa.list_(pa.int32()))])
    assert read(Options(paths=(str(tmp_path / "d"),)), columns) == [{"day": "1", "x": [1, 2]}]


def test_base_path_keeps_all_partition_columns(tmp_path: Path) -> None:
    write(tmp_path, ROWS[:1], partition_by=("day",))
    paths = (str(tmp_path / "d" / "day=*"),)
    assert "day" not in read(Options(paths=paths))[0]
    assert read(Options(paths=paths, base_path=str(tmp_path / "d")))[0]["day"] == 1
    with pytest.raises(DataError, match="is not in the basePath"):
        read(Options(paths=paths, base_path="/elsewhere"))


def test_selected_columns_are_read(tmp_path: Path) -> None:
    write(tmp_path, ROWS, partition_by=("day",))
    options = Options(paths=(str(tmp_path / "d"),), columns=("day", "country"))
    assert read(options)[0] == {"day": 1, "country": "DE"}
    assert read(options, pa.schema([])) == [{}, {}, {}]
    with pytest.raises(DataError, match="there is no column z: there are country, x, day"):
        read(Options(paths=options.paths, columns=("z",)))


def test_count_decodes_no_message(tmp_path: Path) -> None:
    with records.RecordWriter(tmp_path / "d" / "a") as writer:
        writer.write_all([b"\xff no message"] * 3)
    options = Options(paths=(str(tmp_path),))
    assert read(options, pa.schema([])) == [{}, {}, {}]
    with pytest.raises(RecordError, match="the message is damaged"):
        read(options, pa.schema([("x", pa.int64())]))


def test_byte_array_records_are_not_decoded(tmp_path: Path) -> None:
    rows = [{"byteArray": b"one"}, {"byteArray": b""}]
    write(tmp_path, rows, record_type=RecordType.BYTE_ARRAY)
    options = Options(paths=(str(tmp_path),), record_type=RecordType.BYTE_ARRAY)
    assert read(options) == rows


def test_saved_schema_is_used(tmp_path: Path) -> None:
    write(tmp_path, [{"x": 1}])
    schema = records.Schema((records.Feature("x", records.Kind.INT64, (None,)),))
    schema.save(tmp_path / "d" / "schema.json")
    assert read(Options(paths=(str(tmp_path / "d"),))) == [{"x": [1]}]


def test_errors_tell_what_to_do(tmp_path: Path) -> None:
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


def write_records(path: Path, count: int, size: int) -> list[bytes]:
    records = [b"%08d" % number + b"x" * (size - 8) for number in range(count)]
    with RecordWriter(path) as writer:
        writer.write_all(records)
    return records


def plan(path: Path, split_bytes: int) -> list[tuple[Split, ...]]:
    return plan_splits([(file, {}) for file in find_files([str(path)])], split_bytes)


def read_records_of(split: Split) -> list[bytes]:
    chunks = read_chunks(split.path, part=split.part)
    return [record for chunk in chunks for record in chunk]


@pytest.mark.parametrize("indexed", [True, False])
def test_large_file_is_split_between_records(tmp_path: Path, indexed: bool) -> None:
    records = write_records(tmp_path / "large", 1200, 5000)
    if indexed:
        RecordIndex.build(str(tmp_path / "large"), stride=7).save()
    tasks = plan(tmp_path, 2_000_000)
    assert len(tasks) > 1
    parts = [read_records_of(split) for (split,) in tasks]
    assert all(parts)
    assert [record for part in parts for record in part] == records
    for (split,), part in zip(tasks, parts, strict=True):
        assert split.part is not None
        assert records[split.part.index] == part[0]


@pytest.mark.parametrize("suffix", [".gz", ".zlib"])
def test_compressed_file_is_not_split(tmp_path: Path, suffix: str) -> None:
    records = [str(number).encode() * 3 for number in range(5000)]
    with RecordWriter(tmp_path / f"large{suffix}") as writer:
        writer.write_all(records)
    ((split,),) = plan(tmp_path, 1000)
    assert split.part is None
    assert read_records_of(split) == records


def test_tfrecord_data_inside_a_record_does_not_mislead_splits(tmp_path: Path) -> None:
    write_records(tmp_path / "inner", 1000, 100)
    inner = (tmp_path / "inner").read_bytes()
    with RecordWriter(tmp_path / "d" / "outer") as writer:
        writer.write_all([inner] * 40)
    tasks = plan(tmp_path / "d", 500_000)
    assert len(tasks) > 1
    assert [record for (split,) in tasks for record in read_records_of(split)] == [inner] * 40


def test_small_files_are_combined_in_order() -> None:
    files = [FoundFile(f"/d/{number:04d}", 1000, 0, "/d") for number in range(5000)]
    tasks = plan_splits([(file, {}) for file in files], 128 << 20)
    assert 64 <= len(tasks) <= 200
    assert [split.path for task in tasks for split in task] == [file.path for file in files]


def test_few_files_get_a_task_each() -> None:
    files = [FoundFile(f"/d/{number}", OPEN_COST, 0, "/d") for number in range(4)]
    assert [len(task) for task in plan_splits([(file, {}) for file in files], 128 << 20)] == [1] * 4


def test_empty_file_makes_a_task() -> None:
    assert plan_splits([], 1000) == []
    ((split,),) = plan_splits([(FoundFile("/d/empty", 0, 0, "/d"), {})], 1000)
    assert split.path == "/d/empty"


def file(name: str, modified: float) -> FoundFile:
    return FoundFile(f"/d/{name}", 1, modified, "/d")


A, B, C = file("a", 100), file("b", 50), file("c", 200)


def test_every_file_is_read_once_even_with_an_old_date() -> None:
    first = StreamOffset().add([A], [A], 1000)
    assert first.covers(A)
    assert not first.covers(B)
    second = StreamOffset.load(first.dump()).add([B, C], [A, B, C], 1000)
    assert select_files_between(first, second, [C, B, A]) == [B, C]
    assert select_files_between(second, second, [A, B, C]) == []


def test_offset_round_trips_as_text() -> None:
    offset = StreamOffset().add([A, B], [A, B], 1000)
    assert StreamOffset.load(offset.dump()) == offset
    assert all(isinstance(text, str) for text in offset.dump().values())


def test_old_files_are_dropped_and_not_read_again() -> None:
    offset = StreamOffset().add([A, B], [A, B], 1000).add([C], [A, B, C], 120)
    assert len(offset.hashes) == 2
    assert offset.covers(A) and offset.covers(B) and offset.covers(C)
    assert offset.covers(file("very old", 10))


def test_first_batch_has_files_of_any_age() -> None:
    end = StreamOffset().add([A, B, C], [A, B, C], 10)
    assert select_files_between(StreamOffset(), end, [A, B, C]) == [B, A, C]


def test_missing_file_is_an_error() -> None:
    end = StreamOffset().add([A, B], [A, B], 1000)
    with pytest.raises(
        DataError, match="1 of 2 files that the stream was about to read no longer exist"
    ):
        select_files_between(StreamOffset(), end, [B])


def test_offset_of_another_source_is_an_error() -> None:
    with pytest.raises(DataError, match="the checkpoint is not one of format"):
        StreamOffset.load({"logOffset": "3"})
