"""A cluster that runs `fit`: it continues after a kill, and has an evaluator beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "keras_resume.py"


def run(*arguments: str, cwd: Path) -> str:
    """Run a job on this machine, and return its output."""
    environ = {name: text for name, text in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", *arguments],
        cwd=cwd, env=environ, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (["--workers", "1"], "arrays"),
        (["--workers", "1"], "python"),
        (["--workers", "1", "--ps", "1"], "python"),
        (["--workers", "1", "--ps", "1"], "arrays"),
    ],
)
def test_after_a_kill_of_the_chief_the_result_is_that_of_a_whole_run(
    shape: list[str], kind: str, tmp_path: Path
) -> None:
    run(*shape, "--restarts", "3", str(PROGRAM), str(tmp_path), kind, "--sync", cwd=tmp_path)
    assert (tmp_path / "was-killed").exists()
    found = np.load(tmp_path / "found.npz")
    names = [name for name in found if name.startswith("whole")]
    assert len(names) == 9
    for name in names:
        killed = found[name.replace("whole", "killed")]
        np.testing.assert_allclose(killed, found[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_an_evaluator_evaluates_the_checkpoints_of_fit_in_a_module(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    text = PROGRAM.read_text()
    # The call of fit is in another module than the program, which is thus started twice.
    (package / "training.py").write_text(text)
    (package / "main.py").write_text(
        "import runpy\nfrom . import training\nprint('started')\n"
        "runpy.run_path(training.__file__, run_name='__main__')\n"
    )
    shape = ["--workers", "1", "--evaluator"]
    run(*shape, "-m", "trainer.main", str(tmp_path), "evaluator", cwd=tmp_path)
    found = np.load(tmp_path / "found.npz")
    assert len(found["validation"]) == 3
    lines = (tmp_path / "whole/eval/eval.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records[-1]["step"] == 24
    np.testing.assert_allclose(records[-1]["loss"], found["validation"][-1], rtol=1e-5)
