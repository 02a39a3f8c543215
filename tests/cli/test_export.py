"""`phalanx export`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.in_process import invoke


def test_export_writes_the_next_version_and_prints_its_path(
    trained: Path, exported: Path, tmp_path: Path
) -> None:
    assert (exported / "1/saved_model.pb").exists()
    out = tmp_path / "models"
    arguments = ["export", trained / "train.py", "--model-dir", trained / "run", "--out", out]
    assert invoke(*arguments).stdout == f"{out}/1\n"
    assert invoke(*arguments).stdout == f"{out}/2\n"
    assert invoke(*arguments, "--version", 7).stdout == f"{out}/7\n"


def test_export_without_a_checkpoint_is_an_error(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("export", trained / "train.py", "--model-dir", "nowhere", "--out", "models")
    assert done.returncode == 2
    assert "there is no checkpoint in nowhere" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_export_without_a_model_dir_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import phalanx\nphalanx.run(phalanx.Experiment(), phalanx.RunConfig(train_steps=1))"
    )
    done = invoke("export", program, "--out", tmp_path / "models")
    assert done.returncode == 2
    assert "sets no model_dir: name the directory of its run with --model-dir" in done.stderr
