"""`train_and_evaluate` with exporters and an evaluator, as a job of a real Slurm."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers import slurm

from phalanx.train.model_dir.metrics_log import read_evaluations

pytestmark = pytest.mark.slow

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
WIDE_DEEP = Path(__file__).parents[3] / "examples/tf1/wide_deep.py"


@pytest.mark.skipif(slurm.why_not() is not None, reason=str(slurm.why_not()))
def test_evaluator_exports_what_a_cluster_trains(phalanx: Phalanx, tmp_path: Path) -> None:
    model = tmp_path / "census"
    with slurm.three_nodes(tmp_path) as variables:
        environ = {"XDG_STATE_HOME": str(tmp_path / "state"), **variables}
        shape = ["--ps", 1, "--workers", 1, "--evaluator", "--cpus", 1, "--name", "census"]
        given = ["--tf1", *shape, "--python", sys.executable, WIDE_DEEP]
        flags = [f"--model_dir={model}", "--train_steps=200"]
        done = phalanx("launch", "slurm", *given, *flags, **environ)
        assert done.returncode == 0, done.stderr
        try:
            logs = phalanx("logs", "-f", "census", timeout=500, **environ)
            assert logs.returncode == 0, logs.stdout + logs.stderr
        finally:
            phalanx("cancel", "census", **environ)
    last = read_evaluations(str(model))[-1]
    assert last.step >= 200
    assert last.values["accuracy"] > 0.8
    [exported] = (model / "export/census").iterdir()
    assert (exported / "saved_model.pb").exists()
