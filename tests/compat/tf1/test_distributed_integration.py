"""Programs with TensorLayer's distributed module, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Phalanx
from tests.train.conftest import Tasks

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests/programs/tf1"
EXAMPLE = ROOT / "examples/tf1/graph_loop.py"


def run_alone(program: Path, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "phalanx.compat.tf1", str(program), *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_last_worker_evaluates_what_the_others_train_from_feeds(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    done = phalanx(
        "run", "--tf1", "--no-chief", "--ps", 1, "--workers", 3, EXAMPLE,
        "--checkpoint_dir=run", "--train_steps=200", timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    trained = dict(re.findall(r"(worker-\d) \| worker \d trained on (\d+) batches", done.stdout))
    assert trained.keys() == {"worker-0", "worker-1"}
    assert sum(map(int, trained.values())) >= 200
    evaluated = re.findall(r"worker-2 \| evaluated step (\d+): accuracy (\S+)", done.stdout)
    assert int(evaluated[-1][0]) >= 200
    assert float(evaluated[-1][1]) > 0.95
    # Only the master logs.
    assert re.search(r"worker-0 \| step \d+: loss", done.stdout)
    assert not re.search(r"worker-1 \| step \d+: loss", done.stdout)

    checkpoint = tmp_path / f"run/model.ckpt-{evaluated[-1][0]}"
    flags = (f"--checkpoint_dir={tmp_path}/next", f"--load={checkpoint}", "--train_steps=5")
    first = re.search(r"step 1: loss \S+ accuracy (\S+)", run_alone(EXAMPLE, *flags))
    assert first
    assert float(first[1]) > 0.9


def test_session_restores_loads_and_explains_misuse(tmp_path: Path) -> None:
    lines = run_alone(PROGRAMS / "graph_session.py", tmp_path).splitlines()
    assert lines[:5] == [
        "first [6.0, 3, 3]",
        "restored [10.0, 5, 2]",
        "loaded [14.0, 2, 2]",
        "not loaded again [16.0, 3, 1]",
        "stopped after 1",
    ]
    assert "this task is the evaluator, which does not train" in lines[5]
    assert "there is no parameter server to hold its variables" in lines[6]
    assert "tensorlayer.layers.DenseLayer is not provided under --tf1" in lines[7]


@pytest.mark.slow
def test_blocks_of_the_documentation_run_with_a_master(phalanx: Phalanx, tmp_path: Path) -> None:
    for part, numbers in enumerate((range(1, 6), range(6, 11))):
        (tmp_path / f"{part}.txt").write_text("".join(f"{number}\n" for number in numbers))
    program = (PROGRAMS / "tensorlayer_docs.py", tmp_path / "*.txt", "run")
    cluster = ("--tf1", "--ps", 1, "--workers", 2)
    done = phalanx("run", *cluster, *program, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    read = dict(re.findall(r"task (\w+ \d) read (.*)", done.stdout))
    assert read == {"master 0": "[1, 3, 5, 7, 9]", "worker 0": "[2, 4, 6, 8, 10]"}
    assert "chief-0  | INFO:root:loss" in done.stdout
    assert re.search(r"worker-1 \| evaluated step \d+: slope", done.stdout)
    saved = sorted((tmp_path / "run").glob("model.ckpt-*.index"))[-1].with_suffix("")
    again = phalanx("run", *cluster, *program[:2], "again", saved, timeout=580)
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr
    assert "INFO:root:loss 0.0000, slope 2.000" in again.stdout


@pytest.mark.slow
def test_evaluator_that_loops_for_ever_ends_after_training(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    (tmp_path / "0.txt").write_text("1\n2\n3\n4\n5\n6\n")
    program = (PROGRAMS / "tensorlayer_docs.py", tmp_path / "*.txt", "run")
    cluster = ("--tf1", "--no-chief", "--ps", 1, "--workers", 2)
    done = phalanx("run", *cluster, *program, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert re.search(r"worker-1 \| evaluated step \d+: slope", done.stdout)
    assert "the evaluator ends" in done.stdout
    assert "is ended" not in done.stdout + done.stderr


@pytest.mark.slow
def test_training_goes_on_after_a_worker_and_a_ps_are_killed(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path)
    ps, *workers = tasks.addresses(3)
    command = [sys.executable, str(PROGRAMS / "graph_count.py"), str(tmp_path / "run"), "2000"]
    for role, index in (("ps", 0), ("worker", 0), ("worker", 1)):
        task = {"type": role, "index": index}
        tf_config = json.dumps({"cluster": {"ps": [ps], "worker": workers}, "task": task})
        environment = {**os.environ, "TF_CONFIG": tf_config, "TF_CPP_MIN_LOG_LEVEL": "2"}
        tasks.commands[f"{role}-{index}"] = command, environment
        tasks.start(f"{role}-{index}")
    try:
        for killed in ("worker-1", "ps-0"):
            for worker in ("worker-0", "worker-1"):
                tasks.wait_for_line(worker, "runs 41")
            tasks.processes[killed].kill()
            tasks.processes[killed].wait()
            tasks.start(killed)
        tasks.check()
    finally:
        tasks.kill()
    for index in (0, 1):
        assert f"worker {index} is done" in tasks.log(f"worker-{index}")
    assert "the trainers of ps-0 are done" in tasks.log("ps-0")
    # The workers count at the same time: the last step may be passed by one.
    assert list((tmp_path / "run").glob("model.ckpt-200?.index"))
