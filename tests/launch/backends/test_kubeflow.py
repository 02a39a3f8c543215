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
from phalanx.cluster.detect import detect
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
    variables = {each["name"]: each.get("value", "") for each in main["env"]}
    done = subprocess.run(
        main["command"],
        env={"PATH": "/usr/bin:/bin", **variables, **given},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    text, _, index = done.stdout.strip().rpartition(" ")
    return text, index


def test_replica_of_the_operator_gets_the_whole_cluster_and_model_dir() -> None:
    manifest = tfjob(SPEAKING)
    given = tf_config(manifest, "worker", 1)
    # What the operator tells does not name the other workers.
    assert json.loads(given)["cluster"]["worker"] == {"1": "digits-worker-1.default.svc:2222"}
    text, index = run_worker(manifest, TF_CONFIG=given)
    config = loads(text)
    assert index == "1"
    assert str(config.task) == "worker-1"
    assert config.model_dir == "gs://bucket/my digits"
    assert json.loads(text)["cluster"] == {
        "chief": ["digits-chief-0.default.svc:2222"],
        "worker": ["digits-worker-0.default.svc:2222", "digits-worker-1.default.svc:2222"],
        "ps": ["digits-ps-0.default.svc:2222"],
    }


def test_single_task_gets_tf_config_without_the_operator() -> None:
    job = replace(SPEAKING, chief=False, workers=1, ps=0, evaluators=0)
    text, index = run_worker(tfjob(job))
    config = loads(text)
    assert index == "0"
    assert str(config.task) == "worker-0"
    assert config.model_dir == "gs://bucket/my digits"
    assert config.cluster.hosts(Role.WORKER) == ["digits-worker-0.default.svc:2222"]


def test_job_of_many_workers_finds_its_cluster_without_tf_config() -> None:
    manifest = tfjob(replace(SPEAKING, workers=4000))
    text, index = run_worker(manifest, TF_CONFIG=tf_config(manifest, "worker", 3999))
    assert (text, index) == ("", "3999")
    [main] = manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value", "") for each in main["env"]}
    # What the script exports, and the name that the operator gives the pod.
    variables |= {"JOB_COMPLETION_INDEX": "3999", "HOSTNAME": "digits-worker-3999"}
    found = detect(variables, [])
    assert str(found.task) == "worker-3999"
    assert found.cluster.hosts(Role.WORKER)[7] == "digits-worker-7.default.svc:2222"


@pytest.mark.parametrize(("restarts", "limit"), [(0, 0), (1, 2), (3, 4)])
def test_backoff_limit_allows_all_restarts(restarts: int, limit: int) -> None:
    """The operator ends a job when the restarts reach the limit, if it is not 0."""
    assert tfjob(replace(JOB, restarts=restarts))["spec"]["runPolicy"]["backoffLimit"] == limit


def test_without_a_chief_all_workers_decide() -> None:
    assert tfjob()["spec"]["successPolicy"] == ""
    assert tfjob(replace(JOB, chief=False))["spec"]["successPolicy"] == "AllWorkers"


def test_invalid_patch_is_rejected() -> None:
    worker = {"template": {"spec": {"hostNetwrk": True}}}
    patch = {"kind": "TFJob", "spec": {"tfReplicaSpecs": {"Worker": worker}}}
    with pytest.raises(JobError, match="hostNetwrk"):
        render(options=replace(OPTIONS, patches=(patch,)))
