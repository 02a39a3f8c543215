"""Which programs import TensorFlow before they do anything else is read from their sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.launch.backends.local.preload import find_preload
from phalanx.launch.job import Program, ProgramKind

FOUND = ("tensorflow", "keras")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, text: str) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf",
        "import numpy, keras",
        "from tensorflow.keras import layers",
        "try:\n    import keras\nexcept ImportError:\n    keras = None",
        "if True:\n    from keras import layers",
        "import model",
        "from model import build",
        "from parts import layers",
        "import parts.layers",
    ],
)
def test_imports_at_the_start_are_found(source: str) -> None:
    write("model.py", "import tensorflow")
    write("parts/__init__.py", "")
    write("parts/layers.py", "from . import base")
    write("parts/base.py", "import keras")
    write("train.py", source)
    assert find_preload(Program(ProgramKind.FILE, "train.py")) == FOUND


@pytest.mark.parametrize("source", ["import keras\nimport phalanx", "import phalanx, model"])
def test_what_phalanx_runs_with_is_imported_as_well(source: str) -> None:
    write("model.py", "import tensorflow")
    write("train.py", source)
    found = find_preload(Program(ProgramKind.FILE, "train.py"))
    assert set(FOUND) < set(found)
    assert found[-1] == "phalanx.train.runner"
    # Each can be imported, and those before TensorFlow do not import it.
    check = "import sys\n" + "\n".join(
        f"assert 'tensorflow' not in sys.modules; import {name}"
        for name in found[: found.index("tensorflow")]
    )
    subprocess.run(
        [sys.executable, "-c", f"{check}\nassert 'tensorflow' not in sys.modules"], check=True
    )


@pytest.mark.parametrize(
    "source",
    [
        "import json",
        "def train():\n    import tensorflow",
        "class Model:\n    import tensorflow",
        "import torch, phalanx",
        "text = 'import tensorflow'",
        "import itself",
        "import tensorflow as",
        "from . import tensorflow",
    ],
)
def test_other_programs_are_left_alone(source: str) -> None:
    write("itself.py", "import itself, train")
    write("train.py", source)
    assert find_preload(Program(ProgramKind.FILE, "train.py")) == ()


def test_modules_and_directories_are_found() -> None:
    write("trainer/__init__.py", "")
    write("trainer/main.py", "from .model import Model")
    write("trainer/model.py", "import keras")
    write("trainer/__main__.py", "from trainer import main")
    for program in (
        Program(ProgramKind.MODULE, "trainer.main"),
        Program(ProgramKind.MODULE, "trainer"),
        Program(ProgramKind.FILE, "trainer"),
    ):
        assert find_preload(program) == (() if program.kind is ProgramKind.FILE else FOUND)
    assert find_preload(Program(ProgramKind.MODULE, "no.such.module")) == ()
    assert find_preload(Program(ProgramKind.COMMAND, "trainer/main.py")) == ()
