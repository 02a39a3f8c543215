"""The progress file of a run."""

from pathlib import Path

import pytest

from phalanx.cluster.progress import RunProgress, read_progress


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    progress = RunProgress("chief-0", 7, 10, 0.5, 120.0, 3.0, "saving", {"worker-0": 3})
    path = tmp_path / "progress.json"
    RunProgress("chief-0", 1).write(path)
    progress.write(path)
    assert read_progress(path) == progress
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"step": 1}', '{"step": "x"}'])
def test_damaged_progress_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "progress.json"
    assert read_progress(path) is None
    path.write_text(text)
    assert read_progress(path) is None
