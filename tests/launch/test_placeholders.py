from __future__ import annotations

import pytest

from phalanx import Cluster, JobError, Role, Task
from phalanx.launch.placeholders import check_placeholders, fill

CLUSTER = Cluster.of(chief="c:1", workers=["a:1", "b:1"], ps=["p:1", "q:1"])
TASK = Task(Role.WORKER, 1)


@pytest.mark.parametrize(
    ("argument", "filled"),
    [
        ("--job_name={role}", "--job_name=worker"),
        ("{index}", "1"),
        ("{ps_hosts}", "p:1,q:1"),
        ("{worker_hosts}", "a:1,b:1"),
        ("{chief_host}", "c:1"),
        ("{role}-{index}.log", "worker-1.log"),
        ("{{role}}", "{role}"),
        ('{"a": {"b": {}}}', '{"a": {"b": {}}}'),
        ("{}", "{}"),
        ("{1..3}", "{1..3}"),
        ("index=5; echo ${index}", "index=5; echo ${index}"),
    ],
)
def test_only_known_placeholders_are_filled(argument: str, filled: str) -> None:
    check_placeholders([argument])
    assert fill(argument, TASK, CLUSTER) == filled


def test_placeholder_of_an_absent_role_is_empty() -> None:
    assert fill("{ps_hosts}|{chief_host}", TASK, Cluster.of(workers=["a:1"])) == "|"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("{rol}", "unknown placeholder {rol}: did you mean {role}? There are {role}, {index}"),
        ("--x={batch}", "'--x={batch}' has the unknown placeholder {batch}: There are"),
    ],
)
def test_unknown_placeholder_raises(argument: str, said: str) -> None:
    with pytest.raises(JobError) as caught:
        check_placeholders(["fine", argument])
    assert said in str(caught.value)
    assert "write {{" in str(caught.value)
