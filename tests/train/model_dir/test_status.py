"""The status file of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.train.model_dir.status import State, Status, read_status, write_status


def test_a_status_that_was_written_is_read(tmp_path: Path) -> None:
    assert read_status(str(tmp_path)) is None
    written = Status(State.FAILED, 7, "OOM", 12.5)
    write_status(str(tmp_path), written)
    assert read_status(str(tmp_path)) == written
    assert json.loads((tmp_path / "status.json").read_text()) == {
        "state": "failed", "step": 7, "reason": "OOM", "time": 12.5, "job": "",
    }  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]


def test_a_state_of_a_newer_version_is_unknown(tmp_path: Path) -> None:
    text = '{"state": "paused", "step": 7, "reason": "", "time": 1.0, "more": 1}'
    (tmp_path / "status.json").write_text(text)
    assert read_status(str(tmp_path)) == Status(State.UNKNOWN, 7, "", 1.0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "done"}'])
def test_a_damaged_status_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    assert read_status(str(tmp_path)) is None
