"""The progress file that a chief writes for its launcher."""

from pathlib import Path

import pytest
from tests.train.small_experiment import Line

import phalanx
from phalanx.cluster.progress import PROGRESS_VARIABLE, read_progress


def test_run_writes_its_progress_for_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "progress.json"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(path))
    phalanx.run(Line(), phalanx.RunConfig(model_dir=str(tmp_path / "run"), train_steps=20))
    progress = read_progress(path)
    assert progress is not None
    assert (progress.task, progress.step, progress.total) == ("chief-0", 20, 20)
    assert progress.activity == "finished"
    assert progress.loss is not None
    assert progress.trainer_steps == {"chief-0": 20}


def test_run_goes_on_if_its_progress_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "missing" / "progress.json"))
    config = phalanx.RunConfig(model_dir=str(tmp_path / "run"), train_steps=2)
    assert phalanx.run(Line(), config).step == 2
