"""The compose file: compared whole, and read by compose itself where there is one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from phalanx.cluster.spec import Role
from phalanx.launch.backends.compose import ComposeLauncher
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.job import Job, Program, ProgramKind, Resources

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
GOLDEN = Path(__file__).parents[1] / "golden"
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "it's $HOME")),
    workers=1,
    restarts=2,
    environment={"PRICE": "1$"},
    resources={Role.WORKER: Resources(cpus=1.5, memory=1 << 30, gpus=1)},
)
CONTAINER = Container(
    "digits:1",
    mounts=tuple(map(Mount.parse, ["/data:/data:ro", "models:/models", "nfs://server/a:/nfs"])),
    labels={"team": "vision"},
    credentials="/home/ann/key.json",
)


def render(job: Job = JOB) -> str:
    launcher = ComposeLauncher(CONTAINER, Path("jobs/digits"), "r1")
    return launcher.plan(job).render() + "\n"


def test_rendered_plan_matches_golden_file() -> None:
    assert render() == (GOLDEN / "compose.yaml").read_text()


def test_data_workers_are_services() -> None:
    services = yaml.safe_load(render(replace(JOB, data_workers=1)))["services"]
    assert services["chief-0"]["environment"]["PHALANX_DATA_SERVICE"] == "dispatcher-0:2222"
    assert "TF_CONFIG" not in services["data-worker-0"]["environment"]
    command = services["data-worker-0"]["command"]
    assert command[command.index("--") + 4 :] == [
        *("data-service", "worker", "dispatcher-0:2222"),
        *("--host=data-worker-0", "--port=2222"),
    ]


def test_tensorboard_is_a_service_with_a_published_port() -> None:
    launcher = ComposeLauncher(CONTAINER, Path("jobs/digits"), "r1", tensorboard=True)
    text = launcher.plan(replace(JOB, model_dir="/models/digits")).render()
    service = yaml.safe_load(text)["services"]["tensorboard"]
    assert service["command"][3] == "--logdir=/models/digits"
    assert service["ports"] == ["127.0.0.1:6006:6006"]
    assert "environment" not in service


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")
def test_docker_compose_accepts_the_file(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(render(replace(JOB, data_workers=1)))
    done = subprocess.run(
        ["docker-compose", "--file", "compose.yaml", "config"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]["chief-0"]
    assert read["command"][-1] == "it's $$HOME"
    assert read["environment"]["PRICE"] == "1$$"


IMAGE = ["--image", "digits:1"]


def test_existing_user_file_is_not_overwritten(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "train.compose.yaml").write_text("services: {}\n")
    done = phalanx("launch", "compose", *IMAGE, "train.py", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert "train.compose.yaml is there, and was not written by `phalanx launch" in done.stderr
    assert (tmp_path / "train.compose.yaml").read_text() == "services: {}\n"


def test_missing_compose_is_reported(phalanx: Phalanx, tmp_path: Path) -> None:
    more = {"PATH": "/nonexistent", "XDG_STATE_HOME": str(tmp_path)}
    done = phalanx("launch", "compose", *IMAGE, "train.py", **more)
    assert done.returncode == 2
    assert "there is neither `docker compose` nor docker-compose" in done.stderr
    assert not list(tmp_path.iterdir())
