"""Patches: merged by the rules of Kubernetes, and checked against its schema."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx import ConfigurationError, JobError
from phalanx.cluster.spec import Role
from phalanx.launch.backends.compose import ComposeLauncher
from phalanx.launch.backends.kubernetes import KubernetesLauncher
from phalanx.launch.backends.marathon import MarathonLauncher
from phalanx.launch.backends.marathon.plan import MarathonOptions
from phalanx.launch.backends.swarm import SwarmLauncher
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.job import Job, Program, ProgramKind, Resources
from phalanx.launch.kube.manifest import load
from phalanx.launch.kube.options import PodOptions

JOB = Job("digits", Program(ProgramKind.FILE, "train.py"), workers=1, model_dir="gs://b/d")


def patched(*patches: dict[str, Any], place: PodOptions | None = None) -> dict[str, Any]:
    """The workers' Job after the patches."""
    place = replace(place or PodOptions(), patches=patches)
    plan = KubernetesLauncher(Container("digits:1"), place).plan(JOB)
    return next(each for each in plan.objects if each["metadata"]["name"] == "digits-worker")


def pod_patch(**pod: Any) -> dict[str, Any]:
    name = {"name": "digits-worker"}
    return {"kind": "Job", "metadata": name, "spec": {"template": {"spec": pod}}}


def test_patch_merges_a_container_by_its_name() -> None:
    before = patched()["spec"]["template"]["spec"]["containers"][0]
    security = {"imagePullPolicy": "Always"}
    changed = patched(pod_patch(containers=[{"name": "task", **security}]))
    assert changed["spec"]["template"]["spec"]["containers"] == [{**before, **security}]


def test_patch_changes_adds_and_removes_variables() -> None:
    entries = [
        {"name": "PYTHONUNBUFFERED", "value": "0"},
        {"name": "SEED", "value": "1"},
        {"name": "TF_ENABLE_ONEDNN_OPTS", "$patch": "delete"},
    ]
    job = patched(pod_patch(containers=[{"name": "task", "env": entries}]))
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    values = {entry["name"]: entry.get("value") for entry in env}
    assert values["PYTHONUNBUFFERED"] == "0"
    assert values["SEED"] == "1"
    assert "TF_ENABLE_ONEDNN_OPTS" not in values


def test_patch_null_removes_and_other_lists_are_replaced() -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    job = patched(pod_patch(subdomain=None, tolerations=[toleration]))
    pod = job["spec"]["template"]["spec"]
    assert "subdomain" not in pod
    assert pod["tolerations"] == [toleration]


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (
            {"kind": "Jbo"},
            "a patch is for Jbo, but there are NetworkPolicy digits, .*Job digits-chief",
        ),
        ({"spec": {}}, "a patch is for no kind"),
        (
            {"kind": "Job", "spec": {"template": {"spec": {"containers": [{"name": "taks"}]}}}},
            "a patch is for the container taks, which no Job has: there are controller, task",
        ),
        ({"kind": "Job", "metadata": {"name": "other"}}, "a patch is for Job other"),
        (
            pod_patch(restartPolicie="Never"),
            "the patched Job digits-worker is wrong .*restartPolicie",
        ),
        (pod_patch(terminationGracePeriodSeconds="soon"), "terminationGracePeriodSeconds: 'soon'"),
        (pod_patch(containers=[{"image": "x"}]), "an entry without 'name'"),
    ],
)
def test_invalid_patch_raises(patch: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        patched(patch)


def test_patch_without_a_name_reaches_every_object_of_its_kind() -> None:
    def pods(**pod: Any) -> dict[str, Any]:
        patch = {"kind": "Job", "spec": {"template": {"spec": pod}}}
        plan = KubernetesLauncher(Container("a"), PodOptions(patches=(patch,))).plan(JOB)
        jobs = [each for each in plan.objects if each["kind"] == "Job"]
        return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in jobs}

    secrets = [{"name": "registry"}]
    found = pods(imagePullSecrets=secrets)
    assert set(found) == {"digits", "digits-chief", "digits-worker"}
    assert all(pod["imagePullSecrets"] == secrets for pod in found.values())
    found = pods(containers=[{"name": "task", "imagePullPolicy": "Always"}])
    changed = {name: pod["containers"][0].get("imagePullPolicy") for name, pod in found.items()}
    assert changed == {"digits": None, "digits-chief": "Always", "digits-worker": "Always"}


def test_patch_with_a_name_reaches_that_object() -> None:
    tensorboard = PodOptions(tensorboard=True)
    service = {"kind": "Service", "spec": {"type": "NodePort"}}
    patched({**service, "metadata": {"name": "digits-tensorboard"}}, place=tensorboard)


def test_patch_of_compose_file_and_stack() -> None:
    mounts = (Mount.parse("/data:/data"), Mount.parse("/models:/models"))
    volume = {"target": "/data", "read_only": True}
    patch = {"services": {"worker-0": {"cap_add": ["SYS_NICE"], "volumes": [volume]}}}
    container = Container("x", mounts=mounts)
    launchers = (
        ComposeLauncher(container, Path("x"), "r1", patches=(patch,)),
        SwarmLauncher(container, Path("x"), "r1", patches=(patch,)),
    )
    for launcher in launchers:
        services = yaml.safe_load(launcher.plan(JOB).render())["services"]
        assert services["worker-0"]["cap_add"] == ["SYS_NICE"]
        assert services["worker-0"]["image"] == "x"
        assert services["worker-0"]["volumes"] == [
            {"type": "bind", "source": "/data", "target": "/data", "read_only": True},
            {"type": "bind", "source": "/models", "target": "/models"},
        ]
        assert "cap_add" not in services["chief-0"]


def test_patch_of_marathon_app() -> None:
    patch = {"apps": [{"id": "/digits/chief-0", "upgradeStrategy": {"maximumOverCapacity": 0}}]}
    place = MarathonOptions(patches=(patch,))
    launcher = MarathonLauncher("http://m", Container("x"), place, Path("x"), "r1")
    needs = {role: Resources(memory=1 << 30) for role in Role}
    chief, worker = launcher.plan(replace(JOB, resources=needs)).group["apps"]
    assert chief["upgradeStrategy"] == {"maximumOverCapacity": 0}
    assert chief["instances"] == 1
    assert "upgradeStrategy" not in worker


@pytest.mark.parametrize("text", ["a: [", "- just\n- words"])
def test_file_that_is_not_a_patch_raises(tmp_path: Path, text: str) -> None:
    (tmp_path / "patch.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"patch\.yaml"):
        load(tmp_path / "patch.yaml")
