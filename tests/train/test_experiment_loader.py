"""Finding the experiment of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.experiment_loader import load_program


@pytest.mark.parametrize(
    "body",
    [
        "phalanx.run(Named(int(sys.argv[1])), phalanx.RunConfig(model_dir='there'))",
        "if __name__ == '__main__':\n"
        "  phalanx.run(Named(int(sys.argv[1])), phalanx.RunConfig(model_dir='there'))",
    ],
)
def test_the_experiment_that_run_is_called_with_is_found(tmp_path: Path, body: str) -> None:
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
            "E of .* cannot be made",
        ),
    ],
)
def test_a_program_without_exactly_one_experiment_is_refused(
    tmp_path: Path, body: str, reason: str
) -> None:
    (tmp_path / "train.py").write_text(body)
    with pytest.raises(ConfigurationError, match=reason):
        load_program(str(tmp_path / "train.py"))


def test_a_class_that_is_only_defined_is_found(tmp_path: Path) -> None:
    text = "import phalanx\nclass Mine(phalanx.Experiment):\n  pass\n"
    (tmp_path / "train.py").write_text(text)
    assert type(load_program(str(tmp_path / "train.py")).experiment).__name__ == "Mine"
