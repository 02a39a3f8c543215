"""The commands of the guides: each has a valid plan, with the objects that the guide names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from tests.launch.pod_security import templates
from tests.servers.kubernetes import Kubernetes
from tests.servers.kubernetes.admission import refusal
from tests.servers.kubernetes.api import RESOURCES
from tests.servers.kubernetes.authorization import escalation, is_allowed

from phalanx.cli import cli

GUIDES = Path(__file__).parents[3] / "docs/guide"
PAGES = ("launching-kubernetes.md", "launching-kubeflow.md")


def commands(page: str) -> list[list[str]]:
    """The `phalanx launch` commands of a page, as dry runs."""
    blocks = re.findall(r"```bash\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [line.partition("|")[0].removeprefix("phalanx ") for line in lines]
    return [
        ["launch", words[1], "--dry-run", *(word for word in words[2:] if word != "--dry-run")]
        for words in map(shlex.split, found)
        if words and words[0] == "launch"
    ]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("train.py", "key.json", "viewer.json"):
        (tmp_path / name).touch()


def plan(command: list[str]) -> list[dict[str, Any]]:
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_guide_have_a_plan(page: str) -> None:
    assert len(commands(page)) >= 2
    for command in commands(page):
        assert plan(command)


def test_guide_names_objects_of_its_commands() -> None:
    text = (GUIDES / PAGES[0]).read_text()
    made = {
        f"{each['kind'].lower()}/{each['metadata']['name']}"
        for command in commands(PAGES[0])
        for each in plan(command)
    }
    named = set(re.findall(r"\b(?:job|service)/[a-z-]+", text)) - {"job/digits-worker"}
    assert named == {"job/digits", "job/digits-chief", "service/digits-tensorboard"}
    assert named <= made
    # The command that deletes a job that was applied with kubectl misses no kind of it.
    [deleted] = re.findall(r"kubectl delete ([a-z,]+) -l", text)
    applied = next(each for each in commands(PAGES[0]) if "--tensorboard" not in each)
    kinds = {str(each["kind"]).lower() for each in plan(applied)}
    assert kinds == set(deleted.split(","))


def test_restricted_namespace_of_the_guide_admits_its_job(tmp_path: Path) -> None:
    text = (GUIDES / PAGES[0]).read_text()
    [recipe] = [
        each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "Quota" in each
    ]
    cluster = Kubernetes(tmp_path, tmp_path, isolated=False)
    cluster.restricted = True
    rights = (GUIDES / "kubernetes-rbac.yaml").read_text()
    for manifest in (*yaml.safe_load_all(recipe), *yaml.safe_load_all(rights)):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        cluster.objects[manifest["kind"], manifest["metadata"]["name"]] = manifest
    [command] = [each for each in commands(PAGES[0]) if "vision" in each]
    objects = plan(command)
    plurals = {kind: resource for resource, kind in RESOURCES.items()}
    for each in objects:
        group = each["apiVersion"].rpartition("/")[0]
        assert is_allowed(cluster.objects, "user", "create", group, plurals[each["kind"]])
        assert not escalation(cluster.objects, "user", each)
        cluster.objects[each["kind"], each["metadata"]["name"]] = each
    assert [refusal(cluster, each) for each in templates(objects)] == [""] * 3
    # All connections are denied that no rule of the job allows.
    assert {each["metadata"]["name"] for each in objects if each["kind"] == "NetworkPolicy"} == {
        "digits",
        "digits-controller",
    }
