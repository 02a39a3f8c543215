"""The commands, variables and GPUs of tasks."""

from __future__ import annotations

from dataclasses import replace

from phalanx.cluster.spec import Role, Task
from phalanx.launch.job import Job, Program, ProgramKind, Resources
from phalanx.launch.task_commands import (
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
        *("python", "-m", "phalanx", "data-service", "worker", "dispatcher-0:5050"),
        *("--host=data-worker-0", "--port=5050"),
    )
    assert commands[Task(Role.CHIEF)].variables["PHALANX_DATA_SERVICE"] == "dispatcher-0:5050"


def test_tensorboard_shows_the_model_directory() -> None:
    command = tensorboard_command(replace(JOB, model_dir="gs://bucket/digits"), "python")
    expected = "python -m tensorboard.main --logdir=gs://bucket/digits --bind_all --port=6006"
    assert command == expected.split()
