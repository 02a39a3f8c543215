"""Everything that is rendered for Kubernetes meets its Pod Security Standard *restricted*."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.launch.pod_security import templates, violations
from tests.servers import kubernetes

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
Manifest = dict[str, Any]
FULL = [
    *("--workers", 2, "--ps", 1, "--evaluator", "--restarts", 2, "--cpus", 1, "--gpus", "worker=1"),
    *("--mount", "models:/models", "--model-dir", "/models/digits", "--credentials", "key.json"),
    *("--tensorboard", "--tensorboard-credentials", "reader.json", "--protect"),
]
RENDERED: dict[str, list[object]] = {
    "kubernetes": ["launch", "kubernetes", *FULL, "--data-workers", 1],
    "kubernetes-of-one-role": ["launch", "kubernetes"],
    "kubernetes-with-accounts": [
        *("launch", "kubernetes", "--workers", 1, "--service-account", "a"),
        *("--controller-account", "b", "--run-as-user", 1234, "--fs-group", 5678),
    ],
    "kubeflow": ["launch", "kubeflow", *FULL],
    "trainjob": ["launch", "trainjob", *FULL, "--data-workers", 1],
    "manifest": ["manifest", "kubernetes", "gs://bucket/digits", "--credentials", "key.json"],
    "manifest-with-volume": ["manifest", "kubernetes", "/m/digits", "--mount", "models:/m"],
}


@pytest.fixture
def render(phalanx: Phalanx, tmp_path: Path) -> Callable[..., list[Manifest]]:
    for name in ("key.json", "reader.json"):
        (tmp_path / name).write_text(name)

    def run(*arguments: object) -> list[Manifest]:
        more = ["--image", "digits:1", "--dry-run", "--show-secrets", "train.py"]
        done = phalanx(*arguments, *(more if arguments[0] == "launch" else []))
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    return run


@pytest.mark.parametrize("name", RENDERED)
def test_pods_meet_the_restricted_standard(
    render: Callable[..., list[Manifest]], name: str
) -> None:
    objects = render(*RENDERED[name])
    found = list(templates(objects))
    assert found
    for template in found:
        assert violations(template["spec"]) == []
        is_controller = template["metadata"]["labels"].get("phalanx/part") == "controller"
        account = template["spec"].get("serviceAccountName") is not None
        assert template["spec"]["automountServiceAccountToken"] == (account or is_controller)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["securityContext", "runAsNonRoot"], False, "runAsNonRoot != true"),
        (["securityContext", "runAsUser"], 0, "runAsUser=0"),
        (["securityContext", "seccompProfile"], {}, "seccompProfile"),
        (["hostNetwork"], True, "host namespaces"),
        (["volumes"], [{"name": "a", "hostPath": {"path": "/"}}], "restricted volume types"),
        (["containers", 0, "securityContext"], {}, "allowPrivilegeEscalation != false"),
        (["containers", 0, "securityContext", "capabilities"], {}, "unrestricted capabilities"),
        (["containers", 0, "securityContext", "privileged"], True, "privileged"),
        (["containers", 0, "ports"], [{"hostPort": 1}], "hostPort"),
    ],
)
def test_the_check_detects_violations(
    render: Callable[..., list[Manifest]], path: list[Any], value: object, said: str
) -> None:
    [template, *_] = templates(render(*RENDERED["kubernetes-of-one-role"]))
    pod = copy.deepcopy(template["spec"])
    node = pod
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert any(said in each for each in violations(pod))


def test_servers_and_the_controller_have_a_read_only_root(
    render: Callable[..., list[Manifest]],
) -> None:
    objects = render(*RENDERED["kubernetes"]) + render(*RENDERED["manifest"])
    read_only = {
        main["name"]: main["securityContext"].get("readOnlyRootFilesystem", False)
        for template in templates(objects)
        for main in template["spec"]["containers"]
    }
    assert read_only == {"task": False, "controller": True, "tensorboard": True, "serving": True}


@pytest.mark.parametrize("backend", ["kubernetes", "kubeflow", "trainjob"])
def test_tensorboard_is_apart_from_the_tasks(
    render: Callable[..., list[Manifest]], backend: str
) -> None:
    extra = ["--env", "TOKEN=s3cret", "--env-from-secret", "OTHER=wandb", "--service-account", "a"]
    objects = render("launch", backend, *FULL, *extra)
    [board] = [each for each in objects if each["kind"] == "Deployment"]
    pod = board["spec"]["template"]["spec"]
    [main] = pod["containers"]
    assert [each["name"] for each in main["env"]] == ["GOOGLE_APPLICATION_CREDENTIALS"]
    assert all(each.get("readOnly") for each in main["volumeMounts"] if each["name"] != "tmp")
    secrets = [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each]
    assert secrets == ["train-tensorboard-credentials"]
    assert "serviceAccountName" not in pod
    [own] = [
        each["spec"]
        for each in objects
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "train-tensorboard"
    ]
    selector = own["podSelector"]["matchLabels"]
    assert selector.items() <= board["spec"]["template"]["metadata"]["labels"].items()
    assert own["ingress"] == [
        {"from": [{"podSelector": {}}], "ports": [{"port": 6006, "protocol": "TCP"}]}
    ]
    assert own["egress"] == []


def test_tensorboard_on_remote_files_needs_a_key_of_its_own(phalanx: Phalanx) -> None:
    command = ["launch", "kubernetes", "--image", "a", "--tensorboard"]
    key = ["--credentials", "/dev/null", "--model-dir", "gs://b/d", "--dry-run", "train.py"]
    done = phalanx(*command, *key)
    assert done.returncode == 2
    assert "add --tensorboard-credentials with a key that may only read" in done.stderr


def test_root_is_possible_when_asked_for(render: Callable[..., list[Manifest]]) -> None:
    [template, *_] = templates(render("launch", "kubernetes", "--run-as-user", 0))
    assert template["spec"]["securityContext"]["runAsNonRoot"] is False
    assert template["spec"]["securityContext"]["runAsUser"] == 0


def test_job_runs_in_a_restricted_namespace(phalanx: Phalanx, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    (tmp_path / "train.py").write_text("print('trained')")
    patch = "kind: Job\nspec: {template: {spec: {hostNetwork: true}}}\n"
    (tmp_path / "patch.yaml").write_text(patch)
    with kubernetes.running(tmp_path, tmp_path) as (cluster, variables):
        cluster.restricted = True
        more = {**variables, "XDG_STATE_HOME": str(tmp_path / "state")}
        command = ["launch", "kubernetes", "--image", "a"]
        done = phalanx(*command, "--follow", "train.py", **more)
        assert done.returncode == 0, done.stderr
        assert "chief-0 | trained\n" in done.stdout
        refused = phalanx(*command, "--name", "b", "--patch", "patch.yaml", "train.py", **more)
        assert refused.returncode == 2
        assert 'violates PodSecurity "restricted:latest": host namespaces' in refused.stderr
