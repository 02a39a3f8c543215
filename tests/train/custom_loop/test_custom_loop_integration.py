"""Programs with a custom loop, on real clusters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import StartCluster, Tasks

from phalanx.train.model_dir.metrics_log import read_evaluations
from phalanx.train.model_dir.runs import read_run

PROGRAMS = Path(__file__).parents[1] / "programs"
EXAMPLES = Path(__file__).parents[3] / "examples/custom_loop"
CUSTOM_LOOP = PROGRAMS / "custom_loop.py"
TF1_GRAPH = PROGRAMS / "tf1_graph.py"


def start_by_variables(folder: Path, program: Path, *flags: str) -> Tasks:
    """1 ps and 3 workers, which read their tasks from JOB_NAME and related variables."""
    tasks = Tasks(folder)
    ps, *workers = tasks.addresses(4)
    for role, index in (("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2)):
        variables = {
            "JOB_NAME": role, "TASK_INDEX": str(index), "PS_HOSTS": ps,
            "WORKER_HOSTS": ",".join(workers), "TF_CPP_MIN_LOG_LEVEL": "2",
        }  # fmt: skip
        name = f"{role}-{index}"
        with (folder / f"{name}.log").open("wb") as log:
            tasks.processes[name] = subprocess.Popen(
                [sys.executable, str(program), *flags],
                env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
    return tasks


def check_ended(tasks: Tasks, directory: Path) -> None:
    """Every task exited by itself, and the final checkpoint exists."""
    tasks.check()
    run = read_run(str(directory))
    assert run.state == "done"
    assert (directory / f"model.ckpt-{run.step}.index").exists()


@pytest.mark.parametrize("by", ["TF_CONFIG", pytest.param("JOB_NAME", marks=pytest.mark.slow)])
def test_stop_at_time_ends_all_tasks_and_the_final_checkpoint_is_evaluated(
    start_cluster: StartCluster, tmp_path: Path, by: str
) -> None:
    program, flags = EXAMPLES / "continuous_evaluation.py", ("--checkpoint-dir", f"{tmp_path}/run")
    if by == "TF_CONFIG":
        tasks = start_cluster("p w w w", *flags, program=program)
    else:
        tasks = start_by_variables(tmp_path, program, *flags)
    try:
        check_ended(tasks, tmp_path / "run")
    finally:
        tasks.kill()
    found = read_evaluations(str(tmp_path / "run"))
    assert found[-1].step == read_run(str(tmp_path / "run")).step
    assert found[-1].values["loss"] < found[0].values["loss"]
    assert "Evaluation of step" in tasks.log("worker-2")
    assert "5 seconds have passed" in tasks.log("worker-0")


@pytest.mark.slow
def test_sharded_example_runs_on_a_cluster_described_by_job_name(tmp_path: Path) -> None:
    flags = ("--checkpoint-dir", str(tmp_path / "run"), "--steps", "40")
    tasks = start_by_variables(tmp_path, EXAMPLES / "sharded.py", *flags)
    try:
        check_ended(tasks, tmp_path / "run")
    finally:
        tasks.kill()
    assert read_run(str(tmp_path / "run")).step == 40


@pytest.mark.slow
@pytest.mark.parametrize("program", ["plain.py", "sharded.py", "logging_on_master.py"])
@pytest.mark.parametrize("by", ["TF_CONFIG", "JOB_NAME"])
def test_examples_run_with_tf_config_and_with_job_name(
    start_cluster: StartCluster, tmp_path: Path, program: str, by: str
) -> None:
    flags = ("--checkpoint-dir", str(tmp_path / "run"), "--steps", "60")
    if by == "TF_CONFIG":
        tasks = start_cluster("p w w w", *flags, program=EXAMPLES / program)
    else:
        tasks = start_by_variables(tmp_path, EXAMPLES / program, *flags)
    try:
        check_ended(tasks, tmp_path / "run")
    finally:
        tasks.kill()
    if program == "logging_on_master.py":
        assert "step 20: loss = " in tasks.log("worker-0").replace(" of 60", "")
        assert "the learning rate is 0.025" in tasks.log("worker-0")
        assert "loss = " not in tasks.log("worker-1")


@pytest.mark.slow
def test_two_workers_train_the_same_weights_as_one_process(
    start_cluster: StartCluster, tmp_path: Path, read_checkpoint: Any
) -> None:
    runs = {shape: tmp_path / shape.replace(" ", "") for shape in ("w", "w w")}
    for shape, directory in runs.items():
        tasks = start_cluster(shape, str(directory), "12", "24", program=CUSTOM_LOOP)
        check_ended(tasks, directory)
        assert all("ended at 12" in tasks.log(task) for task in tasks.processes)
    one, two = (read_checkpoint(directory, 12) for directory in runs.values())
    assert one.keys() == two.keys()
    assert any("momentum" in name for name in one)
    # The batch sizes of a replica and of an update differ; the weights do not.
    for name, value in one.items():
        if name.startswith(("batch/", "update/")):
            continue
        np.testing.assert_allclose(two[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_sigterm_to_a_worker_interrupts_all_tasks(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    tasks = start_cluster("w w", str(tmp_path), "1000000", "24", program=CUSTOM_LOOP)
    tasks.wait_for_line("worker-0", "Average examples/sec")
    tasks.processes["worker-1"].send_signal(signal.SIGTERM)
    assert set(tasks.wait().values()) == {75}
    assert read_run(str(tmp_path)).state == "interrupted"


@pytest.mark.slow
def test_a_tf1_graph_program_uses_its_task_spec(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    tasks = start_cluster("p w w", str(tmp_path), program=TF1_GRAPH)
    tasks.check()
    assert "w is 3.000; read [0, 2, 4]" in tasks.log("worker-0")
    assert "w is 3.000; read [1, 3, 5]" in tasks.log("worker-1")
    assert "the trainers of ps-0 are done" in tasks.log("ps-0")
