"""`phalanx manifest`."""

from __future__ import annotations

import yaml
from tests.cli.in_process import invoke


def test_compose_file_is_named_after_the_model_directory() -> None:
    done = invoke("manifest", "compose", "/models/digits", "--mount", "/data/models:/models:ro")
    assert done.returncode == 0, done.stderr
    service = yaml.safe_load(done.stdout)["services"]["digits"]
    assert [each["source"] for each in service["volumes"]] == ["/data/models"]


def test_kubernetes_manifest_has_replicas_and_resources() -> None:
    needs = ["--replicas", 3, "--cpus", 2, "--namespace", "ml"]
    done = invoke("manifest", "kubernetes", "gs://bucket/models/digits", *needs)
    assert done.returncode == 0, done.stderr
    objects = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    assert objects["Deployment"]["spec"]["replicas"] == 3
    assert objects["Deployment"]["metadata"]["namespace"] == "ml"
    assert "2000m" in done.stdout
