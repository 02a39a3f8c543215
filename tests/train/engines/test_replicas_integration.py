"""Parameter servers that keep replicas of each other's variables, of which one is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FLAGS = ("--global-batch-size", "30", "--save-steps", "1000000", "--log-steps", "10")
LONG = (*FLAGS, "--train-steps", "1000000", "--slow", "0.05", "--ps-replicas", "2")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("lost", ["ps-0", "ps-1"])
@pytest.mark.parametrize("mode", ["--async", "--sync"])
def test_nothing_but_updates_in_flight_is_lost_with_a_parameter_server(
    mode: str,
    lost: str,
    start_cluster: Any,
    read_checkpoint: Callable[[Path, int], dict[str, Any]],
    tmp_path: Path,
) -> None:
    tasks = start_cluster("c w p p", "--model-dir", str(tmp_path / "a"), *LONG, mode)
    tasks.wait_for_line("chief-0", "step 30")
    tasks.processes[lost].kill()
    assert tasks.wait(240)["chief-0"] == 1
    log = tasks.log("chief-0")
    found = re.search(r"step (\d+) was saved with the replicas of what was lost", log)
    assert found, log
    step = int(found[1])
    assert step >= 30
    more = ("--train-steps", str(step + 10))
    tasks = start_cluster("c w p p", "--model-dir", str(tmp_path / "a"), *FLAGS, mode, *more)
    tasks.check()
    assert f"restored step {step} from" in tasks.log("chief-0")
    if mode == "--sync":
        start_cluster("c", "--model-dir", str(tmp_path / "b"), *FLAGS, *more).check()
        wanted = read_checkpoint(tmp_path / "b", step + 10)
        for name, value in read_checkpoint(tmp_path / "a", step + 10).items():
            np.testing.assert_allclose(value, wanted[name], rtol=2e-3, atol=2e-5, err_msg=name)
