"""The TrainJob and its runtime: compared whole, and against their schemas."""

from __future__ import annotations

import copy
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tests.launch.kubeflow_schemas import RUNTIME, TRAINJOB, jobs_of
from tests.launch.kubernetes_checks import problems

from phalanx import JobError
from phalanx.cluster.detect import detect
from phalanx.cluster.spec import Role
from phalanx.cluster.tf_config import loads
from phalanx.launch.backends.trainjob import TrainJobLauncher
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job, Program, ProgramKind, Resources
from phalanx.launch.kube.manifest import dump
from phalanx.launch.kube.options import PodOptions

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "--index={index}")),
    workers=2,
    restarts=3,
    model_dir="gs://bucket/my digits",
    resources={Role.WORKER: Resources(cpus=4, gpus=1), Role.PS: Resources(memory=1 << 30)},
    time_limit=3600,
)
SHAPES = [JOB, replace(JOB, ps=1, evaluators=1, data_workers=2), replace(JOB, chief=False)]


def objects(job: Job = JOB, options: PodOptions | None = None) -> dict[str, dict[str, Any]]:
    plan = TrainJobLauncher(Container("digits:1"), options or PodOptions()).plan(job)
    return {each["kind"]: each for each in yaml.safe_load_all(plan.render())}


def test_rendered_plan_matches_golden_file() -> None:
    text = TrainJobLauncher(Container("digits:1"), PodOptions()).plan(JOB).render() + "\n"
    assert text == (GOLDEN / "trainjob.yaml").read_text()


@pytest.mark.parametrize("job", SHAPES)
def test_trainjob_matches_the_schema_of_trainer(job: Job) -> None:
    jsonschema.validate(objects(job)["TrainJob"], TRAINJOB)
    jsonschema.validate(objects(job)["TrainingRuntime"], RUNTIME)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata/name", "My_Job"),
        ("spec/template/spec/replicatedJob", []),
        ("spec/template/spec/replicatedJobs/0/replicas", 2),
        ("spec/template/spec/successPolicy/operator", "Most"),
        ("spec/mlPolicy/tensorflow", {}),
    ],
)
def test_schema_detects_wrong_values(path: str, value: Any) -> None:
    spoilt = copy.deepcopy(objects()["TrainingRuntime"])
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
    node: Any = spoilt
    for key in keys:
        node = node[key]
    node[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoilt, RUNTIME)


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_match_the_kubernetes_schema(version: str) -> None:
    jobs = list(jobs_of(objects(SHAPES[1])["TrainingRuntime"]))
    for each in jobs:
        kubernetes_validate.validate(each, version, strict=True)
    assert problems(dump(jobs)) == []


def test_each_role_has_its_own_resources() -> None:
    needs = {
        job["metadata"]["name"]: job["spec"]["template"]["spec"]["containers"][0].get("resources")
        for job in jobs_of(objects(replace(JOB, ps=1))["TrainingRuntime"])
    }
    assert needs["x-chief-0"] == {"requests": {"cpu": "500m", "memory": str(1 << 30)}}
    assert needs["x-worker-0"]["limits"] == {"cpu": "4000m", "nvidia.com/gpu": "1"}
    assert needs["x-ps-0"]["limits"] == {"memory": str(1 << 30)}


def environment_of(role: str, index: int, job: Job = JOB) -> dict[str, str]:
    """What the shell of a pod makes of its index."""
    program = Program(ProgramKind.COMMAND, "env", ("-0", "LAST={role}"))
    runtime = objects(replace(job, program=program))["TrainingRuntime"]
    [each] = [each for each in jobs_of(runtime) if each["metadata"]["name"] == f"x-{role}-0"]
    [main] = each["spec"]["template"]["spec"]["containers"]
    given = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"digits-{role}-0-{index}"}
    done = subprocess.run(
        main["command"],
        env={
            "PATH": "/usr/bin:/bin",
            **given,
            **{entry["name"]: entry.get("value", "") for entry in main["env"]},
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(line.partition("=")[::2] for line in done.stdout.split("\0"))


def test_pod_derives_its_task_from_role_and_index() -> None:
    said = environment_of("worker", 1, replace(JOB, ps=1, evaluators=1))
    assert said["LAST"] == "worker"
    config = loads(said["TF_CONFIG"])
    assert str(config.task) == "worker-1"
    assert config.model_dir == "gs://bucket/my digits"
    assert json.loads(said["TF_CONFIG"])["cluster"] == {
        "chief": ["digits-chief-0-0.digits:2222"],
        "worker": ["digits-worker-0-0.digits:2222", "digits-worker-0-1.digits:2222"],
        "ps": ["digits-ps-0-0.digits:2222"],
    }


def test_tf_config_is_left_out_if_it_is_too_large() -> None:
    said = environment_of("worker", 5, replace(JOB, workers=4000))
    assert "TF_CONFIG" not in said
    found = detect(said, [])
    assert str(found.task) == "worker-5"
    assert found.cluster.hosts(Role.WORKER)[5] == "digits-worker-0-5.digits:2222"


def test_invalid_patch_is_rejected() -> None:
    pod = {"spec": {"template": {"spec": {"hostNetwrk": True}}}}
    jobs = [{"name": "worker", "template": pod}]
    patch = {"kind": "TrainingRuntime", "spec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    with pytest.raises(JobError, match="hostNetwrk"):
        objects(options=PodOptions(patches=(patch,)))
