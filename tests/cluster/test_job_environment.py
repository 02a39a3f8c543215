"""The variables with which a launcher describes a job to its tasks."""

from __future__ import annotations

import pytest

from phalanx import ClusterError, Role, Task
from phalanx.cluster.job_environment import (
    find_dispatcher,
    find_task,
    has_evaluator,
    parse_shape,
    read_port,
    shape_variables,
)


def test_shape_round_trips_for_every_role() -> None:
    tasks = [Task(role, index) for role in Role for index in range(1 if role is Role.CHIEF else 2)]
    assert parse_shape(shape_variables(tasks)["PHALANX_SHAPE"]) == tasks


@pytest.mark.parametrize("text", ["5", "chief", "worker=two", "boss=1", "chief=2", ""])
def test_invalid_shape_is_an_error(text: str) -> None:
    with pytest.raises(ClusterError):
        parse_shape(text)


def test_has_evaluator_reads_the_shape() -> None:
    assert has_evaluator({"PHALANX_SHAPE": "chief=1,evaluator=1"})
    assert not has_evaluator({"PHALANX_SHAPE": "chief=1,evaluator=0"})
    assert not has_evaluator({})


def test_process_number_beyond_the_shape_is_an_error() -> None:
    tasks = parse_shape("chief=1,worker=1")
    assert find_task(tasks, 1, "RANK") == Task(Role.WORKER)
    with pytest.raises(ClusterError, match="RANK is 2, but PHALANX_SHAPE has 2 tasks"):
        find_task(tasks, 2, "RANK")


def test_port_is_read_or_the_default() -> None:
    assert read_port({"PHALANX_PORT": "99"}, 2222) == 99
    assert read_port({}, 2222) == 2222
    for wrong in ("abc", "0", "99999"):
        with pytest.raises(ClusterError, match=f"PHALANX_PORT is '{wrong}'"):
            read_port({"PHALANX_PORT": wrong}, 2222)


def test_dispatcher_is_read_if_it_is_set() -> None:
    assert find_dispatcher({"PHALANX_DATA_SERVICE": "data:5050"}) == "data:5050"
    assert find_dispatcher({"PHALANX_DATA_SERVICE": ""}) is None
    assert find_dispatcher({}) is None
