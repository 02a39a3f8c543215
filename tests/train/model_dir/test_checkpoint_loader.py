"""Loading a trained model from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.small_experiment import Line

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.checkpoint_loader import load_trained


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    config = phalanx.RunConfig(model_dir=str(tmp_path), train_steps=2, global_batch_size=16)
    checkpoint = phalanx.run(Line(), config).checkpoint
    trained = load_trained(Line(), config, checkpoint)
    assert (trained.step, trained.checkpoint) == (2, checkpoint)
    with pytest.raises(ConfigurationError, match="checkpoint of another model"):
        load_trained(Line(hidden=7), config, checkpoint)
