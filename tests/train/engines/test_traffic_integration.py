"""What travels on parameter servers: graphs of workers, frozen weights, sums of gradients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[1] / "programs"


def measure_graphs(folder: Path, workers: int, *flags: str) -> Any:
    program = str(PROGRAMS / "worker_graphs.py")
    command = [sys.executable, program, str(folder), str(workers), *flags]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    output = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    ).stdout
    return json.loads(output.partition("FOUND ")[2])


@pytest.mark.parametrize("flags", [[], ["--sync"]], ids=["asynchronous", "synchronous"])
def test_graphs_of_a_worker_do_not_grow_with_the_workers(tmp_path: Path, flags: list[str]) -> None:
    few = measure_graphs(tmp_path / "few", 2, *flags)
    many = measure_graphs(tmp_path / "many", 4, *flags)
    assert not few.pop("step fetches frozen weights", False)
    assert not many.pop("step fetches frozen weights", False)
    assert few.keys() == many.keys()
    for name, (operations, size) in few.items():
        assert many[name][0] == operations, name
        # The names of functions have numbers of more or fewer digits.
        assert many[name][1] == pytest.approx(size, rel=0.02), name


def test_synchronous_sums_do_not_pass_through_the_chief(start_cluster: Any, tmp_path: Path) -> None:
    flags = ["--model-dir", str(tmp_path), "--sync", "--train-steps=40"]
    tasks = start_cluster("c w w p p", *flags, program=PROGRAMS / "chief_bytes.py")
    tasks.check()
    moved, weights = tasks.log("chief-0").partition("MOVED ")[2].split(" OF ")
    # In each step, both trainers read the weights and send gradients of the same size.
    assert int(moved) < int(weights.split()[0]) / 20
