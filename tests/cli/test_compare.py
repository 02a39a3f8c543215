"""`phalanx compare`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.in_process import invoke


@pytest.fixture(autouse=True)
def chdir_to_runs(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs_folder)


def test_curves_are_drawn_in_the_terminal_and_plotted_to_a_file() -> None:
    done = invoke("compare", "runs/a", "runs/b", "--out", "curves.png")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "loss"
    assert re.search(r"b eval +[▁-█]{3} +9 to 3 at step 3", done.stdout)
    assert re.search(r"a train .* at step 20", done.stdout)
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_the_same_name_are_labelled_by_path_and_nan_is_drawn(tmp_path: Path) -> None:
    for folder, loss in (("x", "1.0"), ("y", "null")):
        (tmp_path / folder / "run").mkdir(parents=True)
        line = f'{{"step": 1, "time": 1.0, "loss": {loss}}}\n'
        (tmp_path / folder / "run/train.jsonl").write_text(line)
    done = invoke("compare", tmp_path / "x/run", tmp_path / "y/run")
    assert re.search(r"x/run train +▁ ", done.stdout)
    assert re.search(r"y/run train +\? +nan to nan", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["runs/a", "--metric", "f1"], "no run has f1: the metrics are"),
        (["runs/a", "--out", "x.gif"], "must end with .png"),
        (["runs/a", "--out", "none/x.png"], "--out none/x.png cannot be written: No such file"),
        (["runs"], "has no curves"),
    ],
)
def test_wrong_use_is_reported(arguments: list[str], reason: str) -> None:
    done = invoke("compare", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr
