"""`phalanx manifest`: against Kubernetes' schema, and in compose's words."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.launch.kubernetes_checks import problems

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
VERSIONS = ("1.34", "1.35", "1.36", "1.37")


@pytest.fixture
def manifest(phalanx: Phalanx, tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "key.json").write_text("the key")

    def run(*arguments: object) -> str:
        done = phalanx("manifest", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_kubernetes(manifest: Callable[..., str]) -> None:
    needs = ["--cpus", 2, "--memory", "4G", "--gpus", 1, "--replicas", 2]
    more = ["--mount", "nfs://server/x:/x:ro", "--credentials", "key.json", "--label", "team=a"]
    text = manifest("kubernetes", "gs://bucket/models/digits/", *needs, *more)
    assert problems(text) == []
    objects: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all(text)}
    assert list(objects) == [
        "Secret",
        "Deployment",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
    ]
    for version in VERSIONS:
        for each in objects.values():
            kubernetes_validate.validate(each, version, strict=True)
    [main] = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert main["command"][-2:] == [
        "--model_name=digits",
        "--model_base_path=gs://bucket/models/digits",
    ]
    assert main["readinessProbe"]["httpGet"]["path"] == "/v1/models/digits"
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_network_policy_admits_the_named_namespaces(manifest: Callable[..., str]) -> None:
    text = manifest("kubernetes", "gs://bucket/digits", "--allow-namespace", "web")
    objects: dict[str, Any] = {each["kind"]: each for each in yaml.safe_load_all(text)}
    policy = objects["NetworkPolicy"]["spec"]
    web = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}}
    assert policy["ingress"][0]["from"] == [{"podSelector": {}}, web]
    assert [each["port"] for each in policy["ingress"][0]["ports"]] == [8500, 8501]
    assert [each["port"] for each in policy["egress"][0]["ports"]] == [53, 53, 443]


def test_compose(manifest: Callable[..., str]) -> None:
    text = manifest("compose", "/models/digits", "--mount", "/home/ann/models:/models:ro")
    assert yaml.safe_load(text) == {
        "services": {
            "digits": {
                "image": "tensorflow/serving:2.20.0",
                "entrypoint": [
                    "tensorflow_model_server",
                    "--port=8500",
                    "--rest_api_port=8501",
                    "--model_name=digits",
                    "--model_base_path=/models/digits",
                ],
                "ports": ["127.0.0.1:8500:8500", "127.0.0.1:8501:8501"],
                "restart": "unless-stopped",
                "user": "1000",
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges:true"],
                "pids_limit": 16384,
                "read_only": True,
                "tmpfs": ["/tmp"],
                "volumes": [
                    {
                        "type": "bind",
                        "source": "/home/ann/models",
                        "target": "/models",
                        "read_only": True,
                    }
                ],
            }
        }
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kubernetes", "models/digits"], "'models/digits' is not a path of the container"),
        (["kubernetes", "/models/digits"], "add --mount SOURCE:/models:ro"),
        (["compose", "gs://b/digits", "--replicas", 2], "leave out --replicas"),
        (["swarm", "gs://b/digits"], "'swarm' is not one of 'compose', 'kubernetes'"),
        (["compose", "gs://b/digits", "--name", "My_Model"], "cannot be a job's name"),
    ],
)
def test_wrong_use(phalanx: Phalanx, arguments: list[object], said: str) -> None:
    done = phalanx("manifest", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
