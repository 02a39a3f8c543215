from __future__ import annotations

from pathlib import Path

import pytest

from phalanx import JobError, LaunchError
from phalanx.launch.ledger import JobRecord, Ledger


def test_a_job_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    ledger = Ledger.of_user({"XDG_STATE_HOME": str(tmp_path)})
    record = JobRecord("digits", "slurm", {"number": "7"})
    ledger.write(record)
    assert ledger.names() == ["digits"]
    assert ledger.read("digits") == record
    ledger.forget("digits")
    assert ledger.find("digits") is None


def test_an_unknown_job_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with pytest.raises(JobError, match="none was launched from here"):
        ledger.read("digits")
    ledger.write(JobRecord("letters", "ssh"))
    with pytest.raises(JobError, match="no job 'digits': there are letters"):
        ledger.read("digits")
    with pytest.raises(JobError, match="no job 'digits': there are letters"):
        ledger.forget("digits")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "digits.json").write_text("{")
    with pytest.raises(LaunchError, match=r"digits\.json cannot be read .*--forget digits"):
        Ledger(tmp_path).read("digits")


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be remembered in"):
        Ledger(tmp_path / "file").write(JobRecord("digits", "ssh"))
