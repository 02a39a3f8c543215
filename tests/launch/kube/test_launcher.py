"""All objects of a job are made, or none stays."""

from __future__ import annotations

import pytest

from phalanx.launch.backends.kubernetes import KubernetesLauncher
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.kube.client import Client
from phalanx.launch.kube.manifest import Manifest
from phalanx.launch.kube.options import PodOptions


def test_interrupted_submit_deletes_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    made, there = [], set()

    def create(client: Client, manifest: Manifest) -> Manifest:
        if manifest["kind"] == "Job":
            raise KeyboardInterrupt
        made.append(manifest["kind"])
        there.add(manifest["kind"])
        return manifest

    def delete(client: Client, kind: str, name: str, namespace: str) -> None:
        there.remove(kind)

    monkeypatch.setattr(Client, "create", create)
    monkeypatch.setattr(Client, "delete", delete)
    monkeypatch.setattr(Client, "warnings", lambda *about: [])
    monkeypatch.setattr(Client, "version", lambda client: (1, 34))
    launcher = KubernetesLauncher(Container("digits:1"), PodOptions())
    plan = launcher.plan(Job("digits", Program(ProgramKind.FILE, "train.py")))
    with pytest.raises(KeyboardInterrupt):
        launcher.submit(plan)
    assert made == ["Secret", "NetworkPolicy", "Service"]
    assert there == set()
