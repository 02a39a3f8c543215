"""examples/recommender: its data, and its networks in another process."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phalanx

EXAMPLE = Path(__file__).parents[2] / "examples" / "recommender"


@pytest.fixture
def clicks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module("clicks")
    sys.modules.pop("clicks")


def test_text_and_records_have_the_same_examples(clicks: Any, tmp_path: Path) -> None:
    generated = clicks.Clicks.generate(100, seed=3)
    for name in ("text", "records"):
        (tmp_path / name).mkdir()
    generated.write_text(tmp_path / "text" / "eval.tsv")
    generated.write_records(str(tmp_path / "records" / "eval.tfrecord"))
    context = phalanx.Context(batch_size=100)

    def read(name: str) -> list[Any]:
        ((inputs, label),) = clicks.read(str(tmp_path / name), "eval", context)
        columns = (label, inputs["numbers"], inputs["categories"])
        rows = zip(*(column.numpy() for column in columns), strict=True)
        return sorted((y.tolist(), x.tolist(), c.tolist()) for y, x, c in rows)

    assert read("text") == read("records")
    categories = {tuple(row) for _, _, row in read("text")}
    assert categories == {tuple(row) for row in generated.categories.tolist()}


def test_no_model_can_be_better_than_the_rule_of_the_data(clicks: Any) -> None:
    generated = clicks.Clicks.generate(5000, seed=1)
    assert 0.8 < generated.best_auc() < 0.95
    assert 0.1 < generated.label.mean() < 0.4
    assert np.isin(b"", generated.categories)


PREDICT = """
import sys, tensorflow as tf
assert "phalanx" not in sys.modules
model = tf.saved_model.load(sys.argv[1])
serve = model.signatures["serving_default"]
found = serve(numbers=tf.ones([1, 13]), categories=tf.fill([1, 26], "68fd1e64"))
print("PREDICTED", *[value.shape for value in found.values()])
assert "phalanx" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("network", ["dlrm", "wide-deep"])
def test_networks_learn_and_are_served_without_phalanx(network: str, tmp_path: Path) -> None:
    # One pass over the examples: in a second one, rare categories are learnt by heart.
    flags = ["--network", network, "--train-steps", "130"]
    program = [str(EXAMPLE / "train.py"), "--model-dir", "run", *flags]
    python = [sys.executable, "-m", "phalanx"]

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    printed = run(*python, "run", "--workers", "1", "--ps", "2", *program, "--sync")
    auc = float(printed.split("AUC")[1].split()[0])
    assert auc > 0.65
    run(*python, "export", program[0], "--model-dir", "run", "--out", "export", "--", *flags)
    (tmp_path / "predict.py").write_text(PREDICT)
    (export,) = (tmp_path / "export").iterdir()
    assert "PREDICTED (1, 1)" in run(sys.executable, "predict.py", str(export))
