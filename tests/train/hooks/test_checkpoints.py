"""Hooks that save checkpoints; tests/train/model_dir has those of the warm start."""

from __future__ import annotations

from tests.train.small_experiment import train_line

import phalanx
from phalanx import hooks
from phalanx.train.loop.session import Session


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
