from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import DataError
from phalanx.records.spark.commit import Job, Staged


def files(directory: Path) -> list[str]:
    return sorted(
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )


def stage(job: Job, name: str) -> Staged:
    path = Path(job.staging) / "0-1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(job.id)
    return Staged(str(path), name)


def test_only_the_files_that_tasks_told_of_are_published(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "out"), "one")
    job.begin()
    told = stage(job, "part-0")
    stage(job, "part-0-speculative")
    assert all(name.startswith("_temporary/") for name in files(tmp_path / "out"))
    job.commit([told], overwrite=False)
    assert files(tmp_path / "out") == ["_SUCCESS", "part-0"]
    assert not (tmp_path / "out/_temporary").exists()


def test_append_leaves_what_was_there(tmp_path: Path) -> None:
    for number in ("one", "two"):
        job = Job(str(tmp_path), number)
        job.begin()
        job.commit([stage(job, f"k=1/{number}")], overwrite=False)
    assert files(tmp_path) == ["_SUCCESS", "k=1/one", "k=1/two"]


def test_overwrite_replaces_everything_and_no_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1/old").touch()
    (tmp_path / "schema.json").touch()
    (tmp_path / "_temporary/killed").mkdir(parents=True)
    (tmp_path / "_temporary/killed/rest").touch()
    job = Job(str(tmp_path), "new")
    job.begin()
    job.commit([stage(job, "k=2/new")], overwrite=True)
    assert files(tmp_path) == ["_SUCCESS", "k=2/new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_SUCCESS", "k=2"]


def test_an_error_while_publishing_loses_nothing_and_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    job = Job(str(tmp_path), "new")
    job.begin()
    with pytest.raises(OSError):
        job.commit([stage(job, "new"), Staged(f"{job.staging}/gone", "gone")], overwrite=True)
    assert [name for name in files(tmp_path) if not name.startswith("_temporary")] == ["old"]
    job.end()
    assert files(tmp_path) == ["old"]


def test_while_files_are_published_the_directory_is_not_marked_as_whole(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    job = Job(str(tmp_path), "new")
    job.begin()
    with pytest.raises(OSError):
        job.commit([Staged(f"{job.staging}/gone", "gone")], overwrite=False)
    assert not (tmp_path / "_SUCCESS").exists()


def test_two_jobs_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    first, second = Job(str(tmp_path), "first"), Job(str(tmp_path), "second")
    first.begin()
    second.begin()
    first.commit([stage(first, "a")], overwrite=False)
    second.check_open()
    second.commit([stage(second, "b")], overwrite=False)
    assert files(tmp_path) == ["_SUCCESS", "a", "b"]


def test_a_task_that_comes_after_the_end_fails(tmp_path: Path) -> None:
    job = Job(str(tmp_path), "one")
    job.begin()
    job.end()
    with pytest.raises(DataError, match="this task came too late"):
        job.check_open()
    assert files(tmp_path) == []
