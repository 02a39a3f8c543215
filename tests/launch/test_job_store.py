from __future__ import annotations

from pathlib import Path

import pytest

from phalanx import JobError, LaunchError
from phalanx.launch.job_store import JobRecord, JobStore


def test_a_job_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    job_store = JobStore.of_user({"XDG_STATE_HOME": str(tmp_path)})
    record = JobRecord("digits", "slurm", {"number": "7"})
    job_store.write(record)
    assert job_store.names() == ["digits"]
    assert job_store.read("digits") == record
    job_store.forget("digits")
    assert job_store.find("digits") is None


def test_an_unknown_job_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    job_store = JobStore(tmp_path)
    with pytest.raises(JobError, match="none was launched from here"):
        job_store.read("digits")
    job_store.write(JobRecord("letters", "ssh"))
    with pytest.raises(JobError, match="no job 'digits': there are letters"):
        job_store.read("digits")
    with pytest.raises(JobError, match="no job 'digits': there are letters"):
        job_store.forget("digits")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "digits.json").write_text("{")
    with pytest.raises(LaunchError, match=r"digits\.json cannot be read .*--forget digits"):
        JobStore(tmp_path).read("digits")


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be recorded in"):
        JobStore(tmp_path / "file").write(JobRecord("digits", "ssh"))
