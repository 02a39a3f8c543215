from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.launch.kube.namespace import find_namespace

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
CONFIG = """
current-context: team
contexts:
- {name: team, context: {cluster: a, namespace: vision}}
- {name: plain, context: {cluster: a}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(CONFIG)
    return path


def test_namespace_is_that_of_the_context(config: Path, tmp_path: Path) -> None:
    environ = {"KUBECONFIG": f"{tmp_path / 'none'}:{config}"}
    assert find_namespace(None, environ) == "vision"
    assert find_namespace("team", environ) == "vision"
    assert find_namespace("plain", environ) == "default"
    assert find_namespace("unknown", environ) == "default"
    assert find_namespace(None, {"HOME": str(tmp_path)}) == "default"
    config.write_text("- not a map")
    assert find_namespace(None, environ) == "default"


def test_objects_are_created_in_the_namespace_of_the_context(
    phalanx: Phalanx, config: Path
) -> None:
    command = ["launch", "kubernetes", "--image", "a", "--dry-run"]
    done = phalanx(*command, "train.py", KUBECONFIG=str(config))
    assert "namespace: vision" in done.stdout
    named = phalanx(*command, "--namespace", "mine", "train.py", KUBECONFIG=str(config))
    assert "namespace: mine" in named.stdout
    assert "vision" not in named.stdout
