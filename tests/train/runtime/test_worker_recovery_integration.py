"""Workers of an asynchronous run that are lost, and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--global-batch-size", "30", "--log-steps", "10", "--train-steps", "1000000")


@pytest.mark.slow
def test_a_worker_is_taken_back_while_another_one_is_lost(
    start_cluster: Any, tmp_path: Path
) -> None:
    flags = ("--model-dir", str(tmp_path), *FLAGS, "--slow", "0.05", "--wait-seconds", "600")
    tasks = start_cluster("c w w p", *flags)
    tasks.wait_for_line("chief-0", "Average examples/sec")
    for task in ("worker-0", "worker-1"):
        tasks.processes[task].kill()
        tasks.processes[task].wait()
    for task in ("worker-1", "worker-0"):
        tasks.start(task)
        tasks.wait_for_line("chief-0", f"{task} is back, and reads on after")
        steps = tasks.log("chief-0").count("Average examples/sec")
        tasks.wait_for_line("chief-0", "Average examples/sec")
        if task == "worker-1":
            assert "worker-0 is back" not in tasks.log("chief-0")
        assert tasks.log("chief-0").count("Average examples/sec") >= steps
    tasks.processes["chief-0"].terminate()
    assert set(tasks.wait().values()) == {75}
