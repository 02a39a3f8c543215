"""Hooks that save, evaluate and export the model; tests/train/model_dir has the warm start."""

from __future__ import annotations

import json
from pathlib import Path

from tests.train.small_experiment import train_line

import phalanx
from phalanx import hooks
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.metrics_log import read_evaluations


def test_checkpoints_are_saved_at_the_start_periodically_and_at_the_end(
    config: phalanx.RunConfig,
) -> None:
    saved: list[int] = []

    class NoteSaves(hooks.Hook):
        def on_save(self, session: Session, path: str) -> None:
            assert path.endswith(f"model.ckpt-{session.step}")
            saved.append(session.step)

    train_line(config, NoteSaves(), save_steps=4)
    assert saved == [0, 4, 6]
    train_line(config, NoteSaves(), save_steps=4, train_steps=8)
    assert saved == [0, 4, 6, 8]


def test_last_step_is_evaluated_once(config: phalanx.RunConfig) -> None:
    train_line(config, hooks.EvaluationHook(hooks.Every(steps=4)))
    assert [found.step for found in read_evaluations(str(config.model_dir))] == [4, 6]


def test_best_exporter_exports_each_improvement_and_keeps_the_newest(
    config: phalanx.RunConfig,
) -> None:
    hook = hooks.BestExporterHook("mae", keep=2)
    train_line(config, hook, train_steps=20, eval_every_steps=5)
    there = sorted(Path(str(config.model_dir), "export", "best").iterdir())
    assert [path.name for path in there] == ["3", "4"]
    about = json.loads((there[-1] / "assets.extra/phalanx.json").read_text())
    assert about["step"] == 20
    assert about["evaluation"]["mae"] == read_evaluations(str(config.model_dir))[-1].values["mae"]


def test_best_exporter_skips_a_model_that_is_not_better(config: phalanx.RunConfig) -> None:
    hook = hooks.BestExporterHook("mae", best="max")
    train_line(config, hook, train_steps=20, eval_every_steps=10)
    assert [path.name for path in Path(str(config.model_dir), "export/best").iterdir()] == ["1"]
