"""The TFJob: compared whole, and against its schema and that of its pods."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tests.launch.kubeflow_schemas import TFJOB
from tests.servers.kubernetes import tf_config

from phalanx import JobError
from phalanx.cluster.spec import Role
from phalanx.cluster.tf_config import loads
from phalanx.launch.backends.kubeflow import KubeflowLauncher
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.job import Job, Program, ProgramKind, Resources
from phalanx.launch.kube.options import PodOptions

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "--index={index}")),
    workers=2,
    ps=1,
    evaluators=1,
    restarts=3,
    model_dir="gs://bucket/my digits",
    resources={Role.WORKER: Resources(cpus=4, gpus=1), Role.PS: Resources(memory=1 << 30)},
    time_limit=3600,
)
CONTAINER = Container("digits:1", mounts=(Mount.parse("models:/models"),))
OPTIONS = PodOptions(credentials=b"the key")


def render(job: Job = JOB, options: PodOptions = OPTIONS) -> str:
    return KubeflowLauncher(CONTAINER, options).plan(job).render() + "\n"


def tfjob(job: Job = JOB, options: PodOptions = OPTIONS) -> dict[str, Any]:
    objects = yaml.safe_load_all(render(job, options))
    found: dict[str, Any] = next(each for each in objects if each["kind"] == "TFJob")
    return found


def test_rendered_plan_matches_golden_file() -> None:
    assert render() == (GOLDEN / "kubeflow.yaml").read_text()


def test_tfjob_matches_the_schema_of_the_operator() -> None:
    jsonschema.validate(tfjob(), TFJOB)
    jsonschema.validate(tfjob(replace(JOB, chief=False)), TFJOB)


def test_schema_detects_wrong_values() -> None:
    spoilt = tfjob()
    spoilt["spec"]["runPolicy"]["backofLimit"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spoilt, TFJOB)


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_match_the_kubernetes_schema(version: str) -> None:
    for replica in tfjob()["spec"]["tfReplicaSpecs"].values():
        template = replica["template"]
        metadata = {**template["metadata"], "name": "x"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        kubernetes_validate.validate(pod, version, strict=True)


def test_each_role_has_its_own_resources() -> None:
    replicas = tfjob()["spec"]["tfReplicaSpecs"]
    needs = {
        kind: replica["template"]["spec"]["containers"][0].get("resources", {}).get("limits", {})
        for kind, replica in replicas.items()
    }
    assert needs == {
        "Chief": {},
        "Worker": {"cpu": "4000m", "nvidia.com/gpu": "1"},
        "PS": {"memory": str(1 << 30)},
        "Evaluator": {},
    }


SPEAKING = replace(
    JOB, program=Program(ProgramKind.COMMAND, "sh", ("-c", "echo $TF_CONFIG {index}"))
)


def run_worker(manifest: dict[str, Any], **given: str) -> tuple[str, str]:
    """The TF_CONFIG and the index that the program of a worker sees."""
    [main] = manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    done = subprocess.run(
        main["command"],
        env={"PATH": "/usr/bin:/bin", **given},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    text, _, index = done.stdout.strip().rpartition(" ")
    return text, index


def test_model_dir_is_added_to_the_tf_config_of_the_operator() -> None:
    manifest = tfjob(SPEAKING)
    text, index = run_worker(manifest, TF_CONFIG=tf_config(manifest, "worker", 1))
    config = loads(text)
    assert index == "1"
    assert str(config.task) == "worker-1"
    assert config.model_dir == "gs://bucket/my digits"
    assert json.loads(text)["cluster"]["ps"] == ["digits-ps-0.default.svc:2222"]


def test_single_task_gets_tf_config_without_the_operator() -> None:
    job = replace(SPEAKING, chief=False, workers=1, ps=0, evaluators=0)
    text, index = run_worker(tfjob(job))
    config = loads(text)
    assert index == "0"
    assert str(config.task) == "worker-0"
    assert config.model_dir == "gs://bucket/my digits"
    assert config.cluster.hosts(Role.WORKER) == ["digits-worker-0.default.svc:2222"]


def test_without_a_chief_all_workers_decide() -> None:
    assert tfjob()["spec"]["successPolicy"] == ""
    assert tfjob(replace(JOB, chief=False))["spec"]["successPolicy"] == "AllWorkers"


def test_invalid_patch_is_rejected() -> None:
    worker = {"template": {"spec": {"hostNetwrk": True}}}
    patch = {"kind": "TFJob", "spec": {"tfReplicaSpecs": {"Worker": worker}}}
    with pytest.raises(JobError, match="hostNetwrk"):
        render(options=replace(OPTIONS, patches=(patch,)))
