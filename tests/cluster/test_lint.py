"""The problems of TF_CONFIG that `lint` finds, and their fixes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.cluster.lint import lint

TASK = {"type": "worker", "index": 0}


def config(cluster: Any = None, task: Any = None, **more: Any) -> str:
    cluster = {"worker": ["a:1", "b:1"]} if cluster is None else cluster
    return json.dumps({"cluster": cluster, "task": TASK if task is None else task, **more})


@pytest.mark.parametrize(
    "text",
    [
        config(),
        config({"master": ["m:1"], "worker": ["a:1"], "ps": ["p:1"]}),
        config({"worker": ["h:1", "h:2"]}),
        config({"worker": {"1": "b:1"}}, {"type": "worker", "index": 1}),
        config(task={"type": "evaluator", "index": 0}),
        config(task={"type": "worker", "index": 0, "trial": "3", "cloud": {}}),
        config({"worker": ["[::1]:1", "[fe80::1%eth0]:2"]}),
        config(model_dir="gs://bucket/x", environment="cloud", job={"a": 1}, rpc_layer="grpc"),
        config({"worker": ["a:1"], "ps": []}),
        '{"task": {"type": "master", "index": 0}}',
    ],
)
def test_valid_tf_config_has_no_problems(text: str) -> None:
    assert lint(text) == []


CHIEF_AND_MASTER = {"chief": ["c:1"], "master": ["m:1"], "worker": ["a:1"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{cluster:", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "a list, not an object"),
        ('{"cluster": {"worker": ["a:1"]}}', "no task"),
        ("{}", "no task"),
        (config(task=[]), "task: a list, not an object"),
        (config(task={"index": 0}), "no type"),
        (config(task={"type": "worker"}), "no index"),
        (config(task={"type": "wroker", "index": 0}), 'Did you mean "worker"?'),
        (config(task={"type": 7, "index": 0}), "no such role as 7"),
        (config({"workers": ["a:1"], "worker": ["b:1"]}), 'Did you mean "worker"?'),
        (config({"boss": ["a:1"], "worker": ["b:1"]}), "cluster.boss: no such role"),
        (config(task={"type": "worker", "index": 2}), "2 is out of range: the cluster has worker"),
        (config(task={"type": "ps", "index": 0}), "the cluster has no ps"),
        (
            config({"worker": {"0": "a:1", "2": "b:1"}}, {"type": "worker", "index": 1}),
            "1 is out of range: the cluster has worker indices 0, 2",
        ),
        (config(task={"type": "worker", "index": -1}), "-1 is not an index"),
        (config(task={"type": "worker", "index": True}), "true is not an index"),
        (config(task={"type": "worker", "index": "1"}), "'1' is a string. Write 1 without quotes"),
        (
            config(task={"type": "worker", "index": 0, "trial": "x"}),
            "'x' is not the number of a trial",
        ),
        (config({"worker": ["a:1"], "ps": ["a:1"]}), "a:1 is the address of cluster.worker[0] too"),
        (config({"worker": ["a:1", "A:1"]}), "A:1 is the address of cluster.worker[0] too"),
        (config({"worker": ["localhost:1", "127.0.0.1:1"]}), "is the address of cluster.worker[0]"),
        (config({"worker": ["a"]}), "'a' has no port. Write it as 'a:2222'"),
        (config({"worker": ["[::1]"]}), "has no port"),
        (config({"worker": ["a:x"]}), "has the port 'x'. Use a port from 1 to 65535"),
        (config({"worker": ["a:0"]}), "has the port '0'"),
        (config({"worker": ["a:65536"]}), "has the port '65536'"),
        (config({"worker": [":1"]}), "has no host"),
        (config({"worker": ["a/b:1"]}), "'a/b' is not a host name"),
        (config({"worker": ["::1:22"]}), "Write IPv6 as '[address]:port'"),
        (config({"worker": ["grpc://a:1"]}), "is a URL. Write it as 'a:1'"),
        (config({"worker": [" a:1"]}), "' a:1' has a stray space. Write it as 'a:1'"),
        (config({"worker": [1]}), "a number, not an address"),
        (config({"worker": "a:1"}), "a string, not a list of addresses. Write ["),
        (config({"worker": "a:1, b:1"}), 'Write ["a:1", "b:1"].'),
        (config({"worker": {"x": "a:1"}}), "'x' is not an index"),
        (config({"worker": {"01": "a:1"}}), "'01' is not an index"),
        (config(["a:1"]), "cluster: a list, not an object"),
        (config({"chief": ["c:1", "d:1"], "worker": ["a:1"]}), "2 chiefs"),
        (config(CHIEF_AND_MASTER), "2 chiefs (cluster.chief[0], cluster.master[0])"),
        (config({"chief": {"1": "c:1"}, "worker": ["a:1"]}), "the only chief has index 0"),
        (config({"ps": ["p:1"]}, {"type": "ps", "index": 0}), "ps without worker"),
        (config({"worker": ["a:1"], "evaluator": ["e:1"]}), "an evaluator is inside the cluster"),
        (config(modeldir="x"), """unknown key 'modeldir'. Did you mean "model_dir"?"""),
        (config(task={"type": "worker", "indx": 0}), 'Did you mean "index"?'),
        (config(model_dir=3), "model_dir: 3 is not a path"),
        (config(environment="clod"), "environment: 'clod' is not known"),
        ('{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}, "task": {}}', "given twice"),
    ],
)
def test_problem_is_reported_with_its_fix(text: str, message: str) -> None:
    assert message in "\n".join(map(str, lint(text)))


def test_unknown_key_that_resembles_no_known_key_is_accepted() -> None:
    assert lint(config(my_scheduler={"queue": 1})) == []


def test_all_problems_are_reported_at_once_and_each_only_once() -> None:
    text = config(
        {"worker": [" a:1", "b"], "ps": ["c:99999"]},
        {"type": "worker", "index": 7},
        enviroment="cloud",
    )
    assert [problem.where for problem in lint(text)] == [
        "TF_CONFIG",
        "cluster.worker[0]",
        "cluster.worker[1]",
        "cluster.ps[0]",
        "task.index",
    ]


def test_every_problem_has_a_fix() -> None:
    problems = lint(config({"chief": "x", "worker": ["a", 3]}, {"type": "nobody"}, model_dir=""))
    assert len(problems) == 6
    assert all(problem.fix[0].isupper() and problem.fix[-1] in ".?" for problem in problems)
