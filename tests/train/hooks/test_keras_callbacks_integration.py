"""What a callback changes reaches every replica and parameter server, on real clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.programs import toy

PROGRAM = Path(toy.__file__).parent / "callbacks.py"
FLAGS = ("--global-batch-size", "30", "--epochs", "6", "--wait-seconds", "60")


def train(start_cluster: Any, shape: str, folder: Path, *flags: str) -> tuple[Any, Any]:
    """Return the summary that the chief wrote, and the final weights."""
    tasks = start_cluster(shape, "--model-dir", str(folder), *FLAGS, *flags, program=PROGRAM)
    tasks.check()
    summary = json.loads((folder / "summary.json").read_text())
    chief = "chief-0" if "c" in shape else "worker-0"
    assert tasks.log(chief).count("PUSHED") == len(summary["epochs"])
    return summary, np.load(folder / "final.npz")


@pytest.fixture(scope="module")
def reference(start_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return train(start_cluster, "c", tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        pytest.param(
            "c",
            ["--devices-there=2", "--devices=CPU:0,CPU:1"],
            id="devices",
            marks=pytest.mark.slow,
        ),
        pytest.param("w w", [], id="two workers", marks=pytest.mark.slow),
        pytest.param("c w p", ["--sync"], id="synchronous on a ps"),
    ],
)
def test_synchronous_training_with_callbacks_equals_one_process(
    shape: str, flags: list[str], start_cluster: Any, reference: tuple[Any, Any], tmp_path: Path
) -> None:
    wanted, wanted_weights = reference
    assert wanted["epochs"] == [0, 1, 2] and wanted["batches"] == [0, 1, 2, 3] * 3
    summary, weights = train(start_cluster, shape, tmp_path, *flags)
    for name in ("epochs", "batches", "best", "step", "iterations"):
        assert summary[name] == wanted[name]
    for name, values in wanted["history"].items():
        np.testing.assert_allclose(summary["history"][name], values, rtol=1e-3, err_msg=name)
    for name in wanted_weights:
        np.testing.assert_allclose(weights[name], wanted_weights[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_asynchronous_training_ends_each_epoch_for_callbacks(
    start_cluster: Any, tmp_path: Path
) -> None:
    summary, weights = train(start_cluster, "c w p", tmp_path)
    epochs = len(summary["epochs"])
    assert summary["epochs"] == list(range(epochs)) and epochs >= 3
    # Each pass of both trainers over their shards: 46 and 45 examples, 15 in a batch.
    assert summary["batches"] == list(range(7)) * epochs
    assert summary["step"] == summary["iterations"] == 7 * epochs
    assert len(summary["history"]["val_loss"]) == epochs
    np.testing.assert_allclose(weights["arr_8"], 0.02, rtol=1e-6)
    # EarlyStopping has restored the weights that ModelCheckpoint saved after the best epoch.
    model = toy.Toy().model()
    model.load_weights(tmp_path / f"{summary['best']}.weights.h5")
    for number, weight in enumerate(model.get_weights()):
        np.testing.assert_array_equal(weights[f"arr_{number}"], weight)


def test_error_of_a_callback_ends_all_tasks(start_cluster: Any, tmp_path: Path) -> None:
    tasks = start_cluster("w w", "--model-dir", str(tmp_path), *FLAGS, "--broken", program=PROGRAM)
    assert all(tasks.wait(120).values())
    assert tasks.log("worker-0").count("phalanx: Broken.on_epoch_end raised KeyError") == 1
    assert "Broken.on_epoch_end raised KeyError" in tasks.log("worker-1")
