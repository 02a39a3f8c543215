"""Every launcher gives the tasks of a job one secret, which shows up nowhere else."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

BACKENDS = {
    "ssh": ["--host", "a"],
    "slurm": [],
    "docker": ["--image", "a"],
    "compose": ["--image", "a"],
    "swarm": ["--image", "a"],
    "kubernetes": ["--image", "a"],
    "kubeflow": ["--image", "a"],
    "trainjob": ["--image", "a"],
    "marathon": ["--image", "a", "--memory", "1G"],
    "ray": [],
}


def test_local_tasks_share_a_secret_that_is_new_for_each_job(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    found = []
    for log_dir in ("first", "second"):
        tell = 'echo "$PHALANX_SECRET"; tr "\\0" " " < /proc/$PPID/cmdline'
        done = phalanx("run", "--workers", 1, "--log-dir", log_dir, "--", "sh", "-c", tell)
        assert done.returncode == 0, done.stderr
        texts = [path.read_text() for path in (tmp_path / log_dir).glob("*.log")]
        found.append({text.splitlines()[0] for text in texts})
        [secret] = found[-1]
        assert re.fullmatch("[0-9a-f]{64}", secret)
        assert all(text.count(secret) == 1 for text in texts)
    assert found[0] != found[1]


def test_local_plan_has_no_secret(phalanx: Phalanx) -> None:
    done = phalanx("run", "--workers", 1, "--dry-run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "PHALANX_SECRET" not in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_plans_have_no_secret(phalanx: Phalanx, backend: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    given = ["--workers", 1, *BACKENDS[backend], "--dry-run", "--show-secrets", "train.py"]
    done = phalanx("launch", backend, *given)
    assert done.returncode == 0, done.stderr
    assert not re.search("[0-9a-f]{64}", done.stdout)
