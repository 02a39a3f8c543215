"""Synchronous training of TensorFlow 1 programs on clusters: how it ends, and how it fails."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compat.tf1.test_cluster_integration import free_ports
from tests.conftest import Phalanx

PROGRAMS = Path(__file__).parents[2] / "programs/tf1"
LIMIT_SECONDS = 30


@pytest.mark.slow
def test_tasks_started_by_hand_do_not_wait_for_ever_for_a_chief_that_failed(tmp_path: Path) -> None:
    addresses = [f"localhost:{port}" for port in free_ports(3)]
    cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
    command = [sys.executable, "-m", "phalanx.compat.tf1", str(PROGRAMS / "failing_chief.py")]
    processes = {
        role: subprocess.Popen(
            [*command, str(LIMIT_SECONDS), str(tmp_path)],
            env={
                **os.environ,
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}}),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in cluster
    }
    try:
        errors = {role: each.communicate(timeout=300)[1] for role, each in processes.items()}
    finally:
        for each in processes.values():
            each.kill()
            each.wait()
    assert all(each.returncode != 0 for each in processes.values())
    assert "ValueError: the chief has failed" in errors["chief"]
    assert "it may have waited for a task that has ended" in errors["worker"]
    assert "neither chief-0 nor a worker has answered ps-0 for 30 s" in errors["ps"]


@pytest.mark.slow
def test_supervisors_train_together_and_end(phalanx: Phalanx) -> None:
    done = phalanx(
        *("run", "--tf1", "--no-chief", "--ps=1", "--workers=2", PROGRAMS / "sync_supervisor.py"),
        *("--job_name={role}", "--task_index={index}", "--ps_hosts={ps_hosts}"),
        *("--worker_hosts={worker_hosts}", "--train_dir=train", "--train_steps=3000"),
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "is ended" not in done.stdout + done.stderr
    match = re.search(r"worker 0 ran (\d+) steps, loss 0\.0000", done.stdout)
    assert match is not None, done.stdout
    # Each step has two gradients: the second worker, which began soon after the first, ran the rest
    # of 6000. It may wait for a token when the first ends.
    assert int(match[1]) < 5000
    assert re.search(r"worker 1 ran|worker-1 \| phalanx: training is over", done.stdout)
