"""The shape, program and name of a job."""

from __future__ import annotations

import json

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError
from phalanx.launch.job import (
    Job,
    Program,
    ProgramKind,
    Resources,
    check_counts,
    check_name,
    cluster_counts,
    make_name,
    make_tasks,
)


def test_command_of_a_module() -> None:
    program = Program(ProgramKind.MODULE, "trainer.main", ("--job_name={role}",))
    assert program.command("python3") == ["python3", "-m", "trainer.main"]


def test_name_is_derived_from_the_program() -> None:
    assert make_name("src/Train_model.py") == "train-model"
    check_name("train-model")
    with pytest.raises(JobError, match="at most 40 lower-case letters"):
        check_name("train-")


def test_tasks_are_in_the_order_of_their_roles() -> None:
    tasks = make_tasks({Role.CHIEF: 1, Role.WORKER: 2, Role.PS: 0})
    assert [str(task) for task in tasks] == ["chief-0", "worker-0", "worker-1"]


def test_job_can_be_written_as_json() -> None:
    program = Program(ProgramKind.FILE, "train.py", ("--job={role}",), tf1=True)
    needs = {Role.WORKER: Resources(cpus=1.5, gpus=2)}
    job = Job("digits", program, workers=2, resources=needs, environment={"A": "b"}, max_workers=3)
    assert Job.load(json.loads(json.dumps(job.dump()))) == job


def test_a_generation_is_a_job_whose_tasks_have_slots() -> None:
    program = Program(ProgramKind.FILE, "train.py")
    job = Job("digits", program, workers=2, ps=1, min_workers=1, max_workers=3)
    slots = [Task(Role.WORKER, index) for index in (0, 2)]
    generation, found = job.with_members(slots)
    assert (generation.workers, generation.is_elastic, generation.restarts) == (1, False, 1)
    assert {str(task): str(slot) for task, slot in found.items()} == {
        "chief-0": "worker-0",
        "worker-0": "worker-2",
        "ps-0": "ps-0",
    }


def test_a_backend_that_cannot_scale_refuses_elastic_jobs() -> None:
    job = Job("digits", Program(ProgramKind.FILE, "train.py"), workers=2, min_workers=1)
    job.validate(can_scale=True)
    with pytest.raises(JobError, match="this backend cannot change the number of workers"):
        job.validate()


@pytest.mark.parametrize(
    ("counts", "error"),
    [
        ((False, 0, 0, 1), "nobody trains: keep the chief, or set workers to at least 1"),
        ((True, 0, 2, 0), "2 ps but no worker"),
        ((True, -1, 0, 0), "worker is -1: it must be at least 0"),
    ],
)
def test_impossible_counts_raise(counts: tuple[bool, int, int, int], error: str) -> None:
    with pytest.raises(JobError, match=error):
        check_counts(cluster_counts(*counts))
