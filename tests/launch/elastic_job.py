"""An elastic job on a backend: a worker is lost, the rest goes on, and its number is changed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.servers.processes import find_tasks, wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = Path(__file__).parents[1] / "programs/count.py"


def read_log(phalanx: Phalanx, task: str) -> str:
    return phalanx("logs", "count", task).stdout


def find_end(phalanx: Phalanx) -> bool:
    return "failed" in phalanx("status").stdout


def run_elastic_job(phalanx: Phalanx, directory: Path, *launch: object) -> None:
    """Launch a chief and two workers, of which one dies; then ask for two workers again."""
    shutil.copy(PROGRAM, directory)
    (directory / "die").write_text("worker-0")
    (directory / "hold").touch()
    shape = ["--workers", 2, "--min-workers", 1, "--grace", "10s"]
    done = phalanx("launch", *launch, *shape, "count.py", 30, 0)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: find_end(phalanx) or "I am chief-0 of 2" in read_log(phalanx, "chief-0"))
    assert not find_end(phalanx), phalanx("logs", "count").stdout
    wait_for(lambda: read_log(phalanx, "worker-1").endswith("I am worker-0 of 2\n"))
    assert sorted(find_tasks("count.py")) == ["chief-0", "worker-0"]
    status = json.loads(phalanx("status", "--json", "count").stdout)
    states = {each["task"]: each["state"] for each in status["tasks"]}
    assert states == {"chief-0": "running", "worker-0": "waiting", "worker-1": "running"}
    refused = phalanx("scale", "count", "--workers", 3)
    assert refused.returncode == 2
    assert "--workers is 3, but the job was started for 1 to 2" in refused.stderr
    # Where it was is kept.
    reached = int((directory / "saved").read_text())
    scaled = phalanx("scale", "count", "--workers", 2)
    assert scaled.returncode == 0, scaled.stderr
    assert "generation 3 has chief-0, worker-0, worker-1" in scaled.stderr
    wait_for(lambda: read_log(phalanx, "chief-0").endswith("I am chief-0 of 3\n"))
    wait_for(lambda: int((directory / "saved").read_text()) > reached)
    (directory / "hold").unlink()
    ended = phalanx("logs", "-f", "count")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "count succeeded" in ended.stderr
    assert not find_tasks("count.py")
    over = phalanx("scale", "count", "--workers", 2)
    assert over.returncode == 2
    assert "no elastic job runs in" in over.stderr
