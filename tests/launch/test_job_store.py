from __future__ import annotations

from pathlib import Path

import pytest

from phalanx import JobError, LaunchError
from phalanx.launch.job_store import JobRecord, JobStore


def test_job_is_stored_until_it_is_forgotten(tmp_path: Path) -> None:
    job_store = JobStore.of_user({"XDG_STATE_HOME": str(tmp_path)})
    record = JobRecord("digits", "slurm", {"number": "7"})
    job_store.write(record)
    assert job_store.names() == ["digits"]
    assert job_store.read("digits") == record
    job_store.forget("digits")
    assert job_store.find("digits") is None


def test_unknown_job_raises_with_the_known_names(tmp_path: Path) -> None:
    job_store = JobStore(tmp_path)
    with pytest.raises(JobError, match="none was launched from here"):
        job_store.read("digits")
    job_store.write(JobRecord("letters", "ssh"))
    with pytest.raises(JobError, match="no job 'digits': there are letters"):
        job_store.read("digits")
    with pytest.raises(JobError, match="no job 'digits': there are letters"):
        job_store.forget("digits")


def test_damaged_record_raises_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "digits.json").write_text("{")
    with pytest.raises(LaunchError, match=r"digits\.json cannot be read .*--forget digits"):
        JobStore(tmp_path).read("digits")


def test_unwritable_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be recorded in"):
        JobStore(tmp_path / "file").write(JobRecord("digits", "ssh"))
