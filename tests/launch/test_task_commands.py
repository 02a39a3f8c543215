"""The commands, variables and GPUs of tasks."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError
from phalanx.launch.job import Job, Program, ProgramKind, Resources
from phalanx.launch.task_commands import (
    RENAME_CHIEF,
    assign_gpus,
    make_task_commands,
    tensorboard_command,
    thread_variables,
)

JOB = Job("digits", Program(ProgramKind.FILE, "train.py"), workers=2)


def test_gpus_are_assigned_by_index_on_each_host() -> None:
    job = replace(JOB, resources={Role.WORKER: Resources(gpus=2)})
    assigned = assign_gpus(job, dict.fromkeys(job.tasks(), "localhost"))
    assert {str(task): indices for task, indices in assigned.items()} == {
        "chief-0": [],
        "worker-0": ["0", "1"],
        "worker-1": ["2", "3"],
    }
    assert assign_gpus(JOB, dict.fromkeys(JOB.tasks(), "localhost")) == {}


def test_one_thread_still_has_two_inter_op_threads() -> None:
    assert thread_variables(1)["TF_NUM_INTEROP_THREADS"] == "2"


def test_command_of_a_data_worker() -> None:
    job = replace(JOB, data_workers=1)
    addresses = {task: f"{task}:5050" for task in job.listening_tasks()}
    commands = {each.task: each for each in make_task_commands(job, addresses, "python")}
    assert commands[Task(Role.DATA_WORKER)].command == (
        *("python", "-m", "phalanx", "guard", "--host=data-worker-0"),
        *("--peers=chief-0,worker-0,worker-1,dispatcher-0,data-worker-0", "--"),
        *("python", "-m", "phalanx", "data-service", "worker", "dispatcher-0:5050"),
        *("--host=data-worker-0", "--port=5050"),
    )
    assert commands[Task(Role.CHIEF)].variables["PHALANX_DATA_SERVICE"] == "dispatcher-0:5050"


def test_tensorboard_shows_the_model_directory() -> None:
    command = tensorboard_command(replace(JOB, model_dir="gs://bucket/digits"), "python")
    expected = "python -m tensorboard.main --logdir=gs://bucket/digits --bind_all --port=6006"
    assert command == expected.split()


def test_tensorflow_1_program_gets_the_tf_config_of_cloud_ml() -> None:
    job = replace(JOB, program=replace(JOB.program, tf1=True), master=True, ps=1)
    addresses = {task: f"{task}:5050" for task in job.listening_tasks()}
    first, *_ = make_task_commands(job, addresses, "python")
    assert first.command[4:] == ("python", "-m", "phalanx.compat.tf1", "train.py")
    config = json.loads(first.variables["TF_CONFIG"])
    assert config["cluster"]["master"] == ["chief-0:5050"]
    assert config["task"] == {"type": "master", "index": 0}
    assert config["environment"] == "cloud"


def test_script_calls_the_chief_master() -> None:
    written = '{"cluster": {"chief": ["chief:1"]}, "task": {"type": "chief", "index": 0}}'
    script = f"export TF_CONFIG='{written}'\n{RENAME_CHIEF}printf %s \"$TF_CONFIG\""
    renamed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(renamed.stdout) == {
        "cluster": {"master": ["chief:1"]},
        "task": {"type": "master", "index": 0},
    }


def test_command_cannot_be_a_tensorflow_1_program() -> None:
    with pytest.raises(JobError, match="--tf1 needs a Python program, and make is a command"):
        replace(JOB, program=Program(ProgramKind.COMMAND, "make", tf1=True)).validate()


def test_master_needs_a_chief() -> None:
    with pytest.raises(JobError, match="--master names the chief, and --no-chief leaves it out"):
        replace(JOB, chief=False, master=True).validate()
