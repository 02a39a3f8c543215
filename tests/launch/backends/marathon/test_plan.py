"""The group: compared whole, and against the published schema."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.launch.marathon_schema import GROUP

from phalanx import JobError
from phalanx.cluster.spec import Role
from phalanx.cluster.tf_config import loads
from phalanx.launch.backends.marathon import MarathonLauncher
from phalanx.launch.backends.marathon.plan import MarathonOptions
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.job import Job, Program, ProgramKind, Resources

GOLDEN = Path(__file__).parents[2] / "golden"
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "it's $(date)")),
    workers=1,
    ps=1,
    restarts=3,
    model_dir="/models/digits",
    resources={
        **{role: Resources(cpus=2, memory=4 << 30) for role in Role},
        Role.PS: Resources(memory=1 << 30),
    },
)
CONTAINER = Container("digits:1", mounts=(Mount.parse("/data:/data:ro"),), labels={"team": "a"})
OPTIONS = MarathonOptions(constraints=(("rack", "LIKE", "gpu"),), tensorboard=True)


def render(
    job: Job = JOB, container: Container = CONTAINER, options: MarathonOptions = OPTIONS
) -> str:
    launcher = MarathonLauncher("http://m", container, options, Path("/state/digits"), "r1")
    return launcher.plan(job).render() + "\n"


def group(job: Job = JOB, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render(job, **more))
    return found


def test_rendered_plan_matches_golden_file() -> None:
    short = replace(JOB, workers=0, ps=0)
    assert render(short) == (GOLDEN / "marathon.json").read_text()


@pytest.mark.parametrize(
    "job", [JOB, replace(JOB, chief=False, evaluators=1, time_limit=60), replace(JOB, workers=300)]
)
def test_group_matches_the_schema_of_marathon(job: Job) -> None:
    jsonschema.Draft202012Validator(GROUP).validate(group(job))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cmd", ""),
        ("cpu", 1),
        ("args", ["a"]),
        ("id", "/digits/Chief_0"),
        ("env/PATH", 1),
        ("healthChecks/0/protocol", "EXEC"),
        ("constraints/0/1", "ONCE"),
        ("container/docker/image", ""),
        ("portDefinitions/0/port", 70000),
    ],
)
def test_schema_detects_wrong_values(path: str, value: Any) -> None:
    spoilt = copy.deepcopy(group())
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
    node: Any = spoilt["apps"][0]
    for key in keys:
        node = node[key]
    node[last] = value
    assert not jsonschema.Draft202012Validator(GROUP).is_valid(spoilt)


def test_each_task_has_its_own_resources_and_port() -> None:
    apps = {app["id"]: app for app in group()["apps"]}
    assert apps["/digits/worker-0"]["cpus"] == 2
    assert apps["/digits/ps-0"]["mem"] == 1024
    config = loads(apps["/digits/ps-0"]["env"]["TF_CONFIG"])
    assert str(config.task) == "ps-0"
    assert config.cluster.hosts(Role.PS) == ["ps-0-digits.marathon.mesos:2224"]
    ports = [app["portDefinitions"][0]["port"] for app in apps.values()]
    assert ports == [2222, 2223, 2224, 2225]


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"job": replace(JOB, resources={})}, "128 MB by default: set the memory of chief"),
        ({"job": replace(JOB, model_dir=None)}, "nothing to show without --model-dir"),
        ({"container": Container("x", credentials="key.json")}, "Marathon has no secrets"),
        ({"container": Container("x", mounts=(Mount.parse("v:/v"),))}, "paths of its agents"),
    ],
)
def test_unsupported_job_is_rejected(shape: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        render(**shape)
