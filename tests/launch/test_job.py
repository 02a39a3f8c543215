"""The shape, program and name of a job."""

from __future__ import annotations

import pytest

from phalanx.cluster.spec import Role
from phalanx.errors import JobError
from phalanx.launch.job import (
    Program,
    ProgramKind,
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
