"""`fit`, `evaluate` and `predict` on clusters: every kind of data, several calls in one program."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import StartCluster

PROGRAM = Path(__file__).parents[1] / "programs" / "keras_fit.py"

# Asynchronous trainers read endless data at their own pace.
ASYNCHRONOUS = {"generator"}


def method(name: str) -> Callable[..., Any]:
    return lambda model, *arguments, **options: getattr(model, name)(*arguments, **options)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Keras finds."""
    spec = importlib.util.spec_from_file_location("keras_fit", PROGRAM)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    folder = tmp_path_factory.mktemp("keras")
    methods = map(method, ("fit", "evaluate", "predict"))
    found: dict[str, Any] = program.run(*methods, folder, pipelines=False)
    return found


def check(path: Path, expected: dict[str, Any], without: set[str] | None = None) -> None:
    found = np.load(path / "found.npz")
    assert set(found) == set(expected)
    for name in set(expected) - (without or set()):
        np.testing.assert_allclose(found[name], expected[name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("shape", "flags", "without"),
    [
        pytest.param("c w", [], set(), marks=pytest.mark.slow),
        ("c w w p", ["--async"], ASYNCHRONOUS),
        pytest.param("w w w", [], set(), marks=pytest.mark.slow),
        pytest.param("c w w p", ["--sync"], set(), marks=pytest.mark.slow),
        pytest.param("c w p p", ["--sync"], set(), marks=pytest.mark.slow),
    ],
)
def test_a_cluster_finds_what_keras_finds(
    shape: str,
    flags: list[str],
    without: set[str],
    expected: dict[str, Any],
    start_cluster: StartCluster,
    tmp_path: Path,
) -> None:
    tasks = start_cluster(shape, str(tmp_path), *flags, program=PROGRAM)
    tasks.check(900)
    check(tmp_path, expected, without)
    # It has joined in time, in processes that are forked as well.
    assert "starting the program again" not in tasks.log("chief-0" if "c" in shape else "worker-0")


def test_one_process_finds_what_keras_finds(
    expected: dict[str, Any], start_cluster: StartCluster, tmp_path: Path
) -> None:
    start_cluster("c", str(tmp_path), program=PROGRAM).check()
    check(tmp_path, expected)
