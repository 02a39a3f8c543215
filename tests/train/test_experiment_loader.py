"""Loading the experiment of a program, and the handler that `run` calls instead of training."""

from __future__ import annotations

from pathlib import Path

import pytest

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.experiment_loader import load_program
from phalanx.train.runner import handle_runs
from phalanx.train.task_run import Result


@pytest.mark.parametrize(
    "body",
    [
        "phalanx.run(Named(int(sys.argv[1])), phalanx.RunConfig(model_dir='there'))",
        "if __name__ == '__main__':\n"
        "  phalanx.run(Named(int(sys.argv[1])), phalanx.RunConfig(model_dir='there'))",
    ],
)
def test_experiment_is_found_at_the_call_of_run(tmp_path: Path, body: str) -> None:
    head = (
        "import sys, phalanx\n"
        "class Named(phalanx.Experiment):\n"
        "  def __init__(self, n): self.n = n\n"
    )
    (tmp_path / "train.py").write_text(head + body)
    found = load_program(str(tmp_path / "train.py"), ["7"])
    assert vars(found.experiment) == {"n": 7}
    assert found.config.model_dir == "there"
    assert phalanx.run.__name__ == "run"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("x = 1", "defines no experiment"),
        ("import sys; sys.exit(2)", "give it the flags"),
        ("import phalanx\na = phalanx.Experiment()\nb = phalanx.Experiment()", "2 experiments"),
        (
            "import phalanx\nclass E(phalanx.Experiment):\n  def __init__(self, n): pass",
            "E of .* cannot be created",
        ),
    ],
)
def test_program_without_one_experiment_is_rejected(tmp_path: Path, body: str, reason: str) -> None:
    (tmp_path / "train.py").write_text(body)
    with pytest.raises(ConfigurationError, match=reason):
        load_program(str(tmp_path / "train.py"))


def test_experiment_that_is_only_defined_is_found(tmp_path: Path) -> None:
    text = "import phalanx\nclass Mine(phalanx.Experiment):\n  pass\n"
    (tmp_path / "train.py").write_text(text)
    assert type(load_program(str(tmp_path / "train.py")).experiment).__name__ == "Mine"


def test_run_calls_the_handler_only_inside_its_block(config: phalanx.RunConfig) -> None:
    seen: list[object] = []

    def note(experiment: phalanx.Experiment, config: phalanx.RunConfig | None) -> Result:
        seen.append((experiment, config))
        return Result(step=42)

    experiment = phalanx.Experiment()
    with handle_runs(note):
        assert phalanx.run(experiment, config).step == 42
    assert seen == [(experiment, config)]
    with pytest.raises(ConfigurationError, match="no model"):
        phalanx.run(experiment, config)


def test_run_trains_again_after_a_program_was_loaded(
    tmp_path: Path, config: phalanx.RunConfig
) -> None:
    for body in ("import phalanx\nphalanx.run(phalanx.Experiment(), phalanx.RunConfig())", "1 / 0"):
        (tmp_path / "train.py").write_text(body)
        if "run" in body:
            load_program(str(tmp_path / "train.py"))
        else:
            with pytest.raises(ZeroDivisionError):
                load_program(str(tmp_path / "train.py"))
        with pytest.raises(ConfigurationError, match="no model"):
            phalanx.run(phalanx.Experiment(), config)
