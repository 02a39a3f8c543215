"""Containers get no privileges and a limited number of processes, TensorBoard's too."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
OPTIONS = ["--image", "i", "--workers", "2", "--tensorboard", "--model-dir", "/m", "--dry-run"]


@pytest.mark.parametrize("options", [[], ["--memory", "1G", "--cpus", "1"]], ids=["bare", "sized"])
def test_swarm_limits_the_processes_of_every_service(
    phalanx: Phalanx, tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "train.py").touch()
    done = phalanx("launch", "swarm", *OPTIONS, *options, "--public-tensorboard", "train.py")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert {"worker-0", "worker-1", "tensorboard"} <= set(services)
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert 0 < service["deploy"]["resources"]["limits"]["pids"] < 100_000
