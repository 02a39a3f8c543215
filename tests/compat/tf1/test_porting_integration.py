"""The three stages of the porting guide reach the same accuracy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Phalanx

pytest.importorskip("tf_keras", reason="not installed: pip install 'phalanx[tf1]'")

STAGES = Path(__file__).parents[3] / "examples/tf1/porting"


def run(tmp_path: Path, *command: str) -> float:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return read_accuracy(done.stdout)


def read_accuracy(output: str) -> float:
    [accuracy] = re.findall(r"accuracy (0\.\d+)", output)
    return float(accuracy)


@pytest.mark.slow
def test_stages_reach_the_same_accuracy_and_read_each_others_checkpoints(tmp_path: Path) -> None:
    tf1 = ("-m", "phalanx.compat.tf1", str(STAGES / "estimator.py"))
    unchanged = run(tmp_path, *tf1, "--model_dir=one")
    experiment = (str(STAGES / "experiment.py"), "--log-steps=500", "--model-dir")
    ported = run(tmp_path, *experiment, "two")
    idiomatic = run(tmp_path, str(STAGES / "fit.py"))
    assert min(unchanged, ported, idiomatic) > 0.9
    assert max(unchanged, ported, idiomatic) < min(unchanged, ported, idiomatic) + 0.03
    warm = run(tmp_path, *experiment, "three", "--warm-start=one", "--train-steps=1")
    assert warm == pytest.approx(unchanged, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "option"), [("estimator.py", "--tf1"), ("experiment.py", None), ("fit.py", None)]
)
def test_stages_reach_the_same_accuracy_on_a_cluster(
    phalanx: Phalanx, stage: str, option: str | None
) -> None:
    options = ["--ps", "1", "--workers", "2", *filter(None, [option])]
    flags = ["--model_dir=run"] if stage != "fit.py" else []
    done = phalanx("run", *options, STAGES / stage, *flags, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert read_accuracy(done.stdout) > 0.9
