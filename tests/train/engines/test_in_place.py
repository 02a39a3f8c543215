"""Steps that update in place: several optimizers in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.parity import custom_steps
from tests.parity.table import FEATURES, TARGETS, batches
from tests.train.programs.model_steps import HalveRate, read_variables

import phalanx


def train(epochs: int, model_dir: str | None = None, fit: Any = phalanx.fit) -> Any:
    keras.utils.set_random_seed(3)
    model = custom_steps.gan()
    data = batches(FEATURES, TARGETS)()
    settings = {} if model_dir is None else {"model_dir": model_dir}
    fit(model, data, epochs=epochs, verbose=0, callbacks=[HalveRate()], **settings)
    return model


def test_run_with_two_optimizers_resumes_where_it_ended(tmp_path: Path) -> None:
    train(1, str(tmp_path))
    resumed = train(2, str(tmp_path))
    whole = train(2, fit=keras.Model.fit)
    for ours, theirs in zip(read_variables(resumed), read_variables(whole), strict=True):
        assert np.asarray(ours) == pytest.approx(np.asarray(theirs), abs=2e-5)
    assert float(resumed.g_optimizer.learning_rate.numpy()) == pytest.approx(0.05 / 3)
