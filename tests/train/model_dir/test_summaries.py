"""Event files and the metrics log."""

from __future__ import annotations

from pathlib import Path

from phalanx.train.model_dir.metrics_log import read_evaluations, read_training
from phalanx.train.model_dir.summaries import Summaries


def test_training_and_evaluations_go_to_their_own_files(tmp_path: Path) -> None:
    summaries = Summaries(str(tmp_path))
    assert not list(tmp_path.iterdir())
    summaries.write_training(4, {"loss": 2.0})
    summaries.write_evaluation(5, {"loss": 1.0})
    summaries.close()
    [training], [evaluation] = read_training(str(tmp_path)), read_evaluations(str(tmp_path))
    assert (training.step, training.values, training.checkpoint) == (4, {"loss": 2.0}, "")
    assert (evaluation.step, evaluation.checkpoint) == (5, "model.ckpt-5")
    assert len(list(tmp_path.glob("events.*"))) == len(list(tmp_path.glob("eval/events.*"))) == 1
