"""`phalanx.fit` on several devices and on clusters computes what `model.fit` computes.

All cases of a mode are trained by one cluster of processes. `make test-all` trains each case in one
mode, in rotation, and those of `DELICATE` in every mode; `make parity` trains all in every mode.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.parity.all_cases import CASES
from tests.parity.table import ON_PS, Case, Mode
from tests.parity.training import Outcome, compare, train_with_keras

ROOT = Path(__file__).parents[2]
SHAPES = {
    Mode.TWO_DEVICES: [],
    Mode.ALL_REDUCE: ["--workers", "1"],
    Mode.SYNC_PS: ["--workers", "1", "--ps", "1"],
    Mode.ASYNC_PS: ["--workers", "1", "--ps", "1"],
}
# The cases that the fast suite trains: one for each part of the step and of the data.
REPRESENTATIVE = {
    "AdamW",
    "BatchNormalization",
    "Dropout and fit called twice",
    "TextVectorization in the model",
    "a last batch of uneven parts",
    "EarlyStopping with restore_best_weights",
}
# Cases whose computation differs most from mode to mode.
DELICATE = REPRESENTATIVE | {
    "BatchNormalization with a last batch that is smaller",
    "GaussianNoise and two Dropout layers",
    "a generator without end",
    "a train_step that returns its loss without a metric",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "integer and boolean state",
    "keras.layers.Embedding in a train_step of the model's own",
    "keras.layers.Embedding with Adam",
    "layers frozen and the model compiled again between fits",
    "mixed_float16, whose optimizer scales the loss",
    "sample_weight with a last batch that is smaller",
    "several outputs and batches of uneven parts",
    "stop_training at the start of an epoch",
    "use_ema with overwriting",
    "weights without a gradient are not decayed",
}
# As `make parity` does.
ALL_MODES = "PHALANX_ALL_MODES" in os.environ

TrainAll = Callable[[Mode], Path]


def list_cases(mode: Mode) -> list[Case]:
    return [case for case in CASES if not case.refused.get(mode)]


def choose_modes(number: int, case: Case) -> list[Mode]:
    """Return the modes in which the slow suite trains a case."""
    modes = [mode for mode in SHAPES if not case.refused.get(mode)]
    if ALL_MODES or case.name in DELICATE or not modes:
        return modes
    return [modes[number % len(modes)]]


TRAINED = [(mode, case) for number, case in enumerate(CASES) for mode in choose_modes(number, case)]


def run_cases(
    mode: Mode, directory: Path, cases: list[Case], shape: Sequence[str] = (), **environ: str
) -> None:
    """Train cases in one cluster, which writes the results into a directory."""
    command = ["-m", "tests.parity.program", str(directory), mode, *(case.name for case in cases)]
    if shape := shape or SHAPES[mode]:
        command = ["-m", "phalanx", "run", *shape, "--log-dir", str(directory), *command]
    kept = {name: text for name, text in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), **kept, **environ},
        capture_output=True,
        text=True,
        timeout=7000,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def check_case(mode: Mode, directory: Path, case: Case) -> None:
    """Compare the result of a case with that of Keras."""
    path = directory / f"{CASES.index(case)}.pickle"
    assert path.exists(), f"{case.name} was not trained"
    result = pickle.loads(path.read_bytes())
    assert isinstance(result, Outcome), result
    compare(case, mode, result, train_with_keras(case))


def check_cases(mode: Mode, directory: Path, cases: list[Case]) -> None:
    """Compare the results of cases, and name all that differ."""
    problems = []
    for case in cases:
        try:
            check_case(mode, directory, case)
        except AssertionError as error:
            problems.append(f"{case.name}: {error}")
    assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def train_all(tmp_path_factory: pytest.TempPathFactory) -> TrainAll:
    """Train the cases of a mode, only once; return the directory of the results."""
    directories: dict[Mode, Path] = {}

    def train(mode: Mode) -> Path:
        if mode not in directories:
            directories[mode] = tmp_path_factory.mktemp("parity")
            cases = [case for trained, case in TRAINED if trained == mode]
            run_cases(mode, directories[mode], cases)
        return directories[mode]

    return train


def test_every_case_that_a_mode_can_train_is_trained() -> None:
    trained = {case.name for _, case in TRAINED}
    assert trained == {case.name for mode in SHAPES for case in list_cases(mode)}
    assert trained >= DELICATE


@pytest.mark.parametrize(
    "mode", [Mode.ALL_REDUCE, pytest.param(Mode.SYNC_PS, marks=pytest.mark.slow)]
)
def test_representative_results_equal_those_of_keras(mode: Mode, tmp_path: Path) -> None:
    cases = [case for case in list_cases(mode) if case.name in REPRESENTATIVE]
    run_cases(mode, tmp_path, cases)
    check_cases(mode, tmp_path, cases)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ON_PS)
def test_embeddings_that_are_split_over_ps_equal_those_of_keras(mode: Mode, tmp_path: Path) -> None:
    cases = [case for case in list_cases(mode) if "keras.layers.Embedding" in case.name]
    # A case has a weight of 20 rows and 320 bytes: three servers have 6, 7 and 7 of these rows.
    run_cases(mode, tmp_path, cases, ["--workers", "1", "--ps", "3"], LARGE_BYTES="320")
    check_cases(mode, tmp_path, cases)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("mode", "case"),
    [pytest.param(mode, case, id=f"{mode}: {case.name}") for mode, case in TRAINED],
)
def test_results_equal_those_of_keras(mode: Mode, case: Case, train_all: TrainAll) -> None:
    check_case(mode, train_all(mode), case)
