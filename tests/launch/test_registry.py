from __future__ import annotations

from pathlib import Path

import pytest

from phalanx import ConfigurationError
from phalanx.launch import registry
from phalanx.launch.backends.local import LocalLauncher


def test_local_launcher_is_built_in() -> None:
    assert "local" in registry.names()
    assert registry.find("local") is LocalLauncher


def test_unknown_launcher_error_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"no launcher 'nomad': there are .*local"):
        registry.find("nomad")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that adds launchers."""
    (tmp_path / "their_launchers.py").write_text(
        "class Nomad:\n    def plan(self, job): ...\n    def submit(self, plan): ...\n"
        "class Broken:\n    def plan(self, job): ...\n"
    )
    info = tmp_path / "their_launchers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-launchers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[phalanx.launchers]\nnomad = their_launchers:Nomad\nbroken = their_launchers:Broken\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_package_adds_a_launcher_with_an_entry_point() -> None:
    assert {"local", "nomad"} <= set(registry.names())
    assert registry.find("nomad").__name__ == "Nomad"


@pytest.mark.usefixtures("installed")
def test_launcher_without_submit_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="'broken' has no method submit"):
        registry.find("broken")
