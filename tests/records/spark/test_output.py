import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phalanx.errors import DataError
from phalanx.records.spark.columns import RecordType
from phalanx.records.spark.options import Options
from phalanx.records.spark.output import (
    Overwrite,
    PendingFile,
    WriteJob,
    check_columns,
    holds_table,
    write_files,
)
from phalanx.records.storage.listing import expand, find_files


def files(directory: Path) -> list[str]:
    return sorted(
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )


def write_pending(job: WriteJob, name: str) -> PendingFile:
    path = Path(job.temporary) / "0-1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(job.id)
    return PendingFile(str(path), name)


def test_only_reported_files_are_published(tmp_path: Path) -> None:
    job = WriteJob(str(tmp_path / "out"), "one")
    job.begin()
    reported = write_pending(job, "part-0")
    write_pending(job, "part-0-speculative")
    assert all(name.startswith("_temporary/") for name in files(tmp_path / "out"))
    job.commit([reported], Overwrite.NOTHING)
    assert files(tmp_path / "out") == ["_SUCCESS", "part-0"]
    assert not (tmp_path / "out/_temporary").exists()


def test_append_keeps_existing_files(tmp_path: Path) -> None:
    for number in ("one", "two"):
        job = WriteJob(str(tmp_path), number)
        job.begin()
        job.commit([write_pending(job, f"k=1/{number}")], Overwrite.NOTHING)
    assert files(tmp_path) == ["_SUCCESS", "k=1/one", "k=1/two"]


def test_overwrite_replaces_files_and_removes_empty_directories(tmp_path: Path) -> None:
    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1/old").touch()
    (tmp_path / "schema.json").touch()
    (tmp_path / "_temporary/killed").mkdir(parents=True)
    (tmp_path / "_temporary/killed/rest").touch()
    job = WriteJob(str(tmp_path), "new")
    job.begin()
    job.commit([write_pending(job, "k=2/new")], Overwrite.EVERYTHING)
    assert files(tmp_path) == ["_SUCCESS", "k=2/new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_SUCCESS", "k=2"]


def test_error_while_publishing_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    job = WriteJob(str(tmp_path), "new")
    job.begin()
    with pytest.raises(OSError):
        job.commit(
            [write_pending(job, "new"), PendingFile(f"{job.temporary}/gone", "gone")],
            Overwrite.EVERYTHING,
        )
    assert [name for name in files(tmp_path) if not name.startswith("_temporary")] == ["old"]
    job.end()
    assert files(tmp_path) == ["old"]


def test_success_marker_is_missing_while_publishing(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    job = WriteJob(str(tmp_path), "new")
    job.begin()
    with pytest.raises(OSError):
        job.commit([PendingFile(f"{job.temporary}/gone", "gone")], Overwrite.NOTHING)
    assert not (tmp_path / "_SUCCESS").exists()


def test_concurrent_jobs_do_not_interfere(tmp_path: Path) -> None:
    first, second = WriteJob(str(tmp_path), "first"), WriteJob(str(tmp_path), "second")
    first.begin()
    second.begin()
    first.commit([write_pending(first, "a")], Overwrite.NOTHING)
    second.check_open()
    second.commit([write_pending(second, "b")], Overwrite.NOTHING)
    assert files(tmp_path) == ["_SUCCESS", "a", "b"]


def test_task_fails_after_the_job_has_ended(tmp_path: Path) -> None:
    job = WriteJob(str(tmp_path), "one")
    job.begin()
    job.end()
    with pytest.raises(DataError, match="this task came too late"):
        job.check_open()
    assert files(tmp_path) == []


def test_task_that_outlives_its_job_creates_no_directory_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for partition_by in ((), ("k",)):
        job = WriteJob(str(out), "one")
        job.begin()
        batch = pa.RecordBatch.from_pydict({"x": [1, 2], "k": ["a", "b"]})

        def batches(job: WriteJob = job, batch: pa.RecordBatch = batch) -> Any:
            job.check_open()
            job.abort()
            yield batch

        with pytest.raises(DataError, match=r"cannot make the directory .*: No such file"):
            write_files(
                batches(),
                f"{job.temporary}/0-1",
                "part",
                Options(partition_by=partition_by),
                always=True,
                root=job.temporary,
            )
        assert not out.exists()


def test_job_ends_while_a_task_still_writes(tmp_path: Path) -> None:
    job = WriteJob(str(tmp_path / "out"), "one")
    job.begin()
    write_pending(job, "part-0")
    pid = os.fork()
    if pid == 0:

        def write(event: str, arguments: tuple[object, ...]) -> None:
            """Write one more file just before a directory is removed."""
            if event == "os.rmdir":
                with contextlib.suppress(FileNotFoundError):
                    Path(job.temporary, "0-1", "late").touch()

        sys.addaudithook(write)
        try:
            job.abort()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert not (tmp_path / "out").exists()


def commit_and_die(
    job: WriteJob, pending: list[PendingFile], overwrite: Overwrite, step: int
) -> bool:
    """Commit in a process that dies before its nth change of the file system."""
    pid = os.fork()
    if pid == 0:
        left = step
        changes = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")

        def die(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            left -= event in changes or (event == "open" and "w" in str(arguments[1]))
            if left < 0:
                os._exit(1)

        sys.addaudithook(die)
        job.commit(pending, overwrite)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [Overwrite.NOTHING, Overwrite.EVERYTHING])
def test_driver_death_at_any_step_leaves_all_old_or_all_new_files(
    tmp_path: Path, overwrite: Overwrite
) -> None:
    old, new = ["k=1/old", "k=2/old"], ["k=1/new", "k=2/new"]
    after = new if overwrite is Overwrite.EVERYTHING else sorted(old + new)
    seen = []
    for step in range(100):
        out = tmp_path / str(step)
        for name in old:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).touch()
        job = WriteJob(str(out), "new")
        job.begin()
        is_done = commit_and_die(job, [write_pending(job, name) for name in new], overwrite, step)
        assert (out / "_SUCCESS").exists() == is_done
        for paths in (
            [file.path for file in find_files([str(out)])],
            [file.path for each in sorted(out.glob("k=*")) for file in find_files([str(each)])],
            [file.path for file in find_files([f"{out}/k=*/*"])],
            expand(f"{out}/k=*/*"),
        ):
            found = [Path(path).relative_to(out).as_posix() for path in paths]
            assert found in (old, after), step
            seen.append(found)
        if is_done:
            break
    assert seen[0] == old and seen[-1] == after and len(seen) > 30
    assert sorted(seen, key=lambda found: found != old) == seen, "files disappeared again"


def test_files_of_a_dead_driver_stay_hidden_until_overwritten(tmp_path: Path) -> None:
    dead = WriteJob(str(tmp_path), "dead")
    dead.begin()
    pending = [write_pending(dead, name) for name in ("part-0-dead", "part-1-dead")]
    assert not commit_and_die(dead, pending, Overwrite.NOTHING, step=6)
    assert (tmp_path / "part-0-dead").exists()
    assert not holds_table(str(tmp_path))
    for mode, overwrite, files_after in (
        ("append", Overwrite.NOTHING, ["part-0-append"]),
        ("overwrite", Overwrite.EVERYTHING, ["part-0-overwrite"]),
    ):
        job = WriteJob(str(tmp_path), mode)
        job.begin()
        job.commit([write_pending(job, f"part-0-{mode}")], overwrite)
        assert holds_table(str(tmp_path))
        found = [Path(file.path).name for file in find_files([str(tmp_path)])]
        assert found == files_after
    assert files(tmp_path) == ["_SUCCESS", "part-0-overwrite"]


def test_abort_leaves_no_directory_unless_it_held_files_before(tmp_path: Path) -> None:
    for name, kept in (("new", False), ("old", True)):
        out = tmp_path / name
        if kept:
            out.mkdir()
            (out / "part-0").touch()
        job = WriteJob(str(out), "one")
        job.begin()
        job.abort()
        assert out.exists() == kept


def test_dynamic_overwrite_replaces_only_the_partitions_written(tmp_path: Path) -> None:
    for number, names in enumerate((["k=1/a", "k=2/a"], ["k=2/b"])):
        job = WriteJob(str(tmp_path), str(number))
        job.begin()
        job.commit([write_pending(job, name) for name in names], Overwrite.PARTITIONS)
    assert files(tmp_path) == ["_SUCCESS", "k=1/a", "k=2/b"]


def test_task_without_rows_writes_a_file_only_with_always(tmp_path: Path) -> None:
    for always, names in ((True, ["part-c000.tfrecord"]), (False, [])):
        assert write_files([], str(tmp_path), "part", Options(), always=always) == names


def test_failed_task_leaves_no_files(tmp_path: Path) -> None:
    def batches() -> Any:
        yield pa.RecordBatch.from_pylist([{"day": "1", "x": [1, 2]}, {"day": "2", "x": []}])
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
def test_check_columns_rejects_unwritable_columns(options: Options, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_columns(pa.schema([("a", pa.int64()), ("b", pa.int64())]), options)


def test_check_columns_rejects_a_frame_without_columns() -> None:
    with pytest.raises(DataError, match="the DataFrame has no columns: there is nothing to write"):
        check_columns(pa.schema([]), Options())
