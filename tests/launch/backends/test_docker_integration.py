"""`phalanx launch docker` and `phalanx launch compose` with a real engine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers import docker
from tests.servers.processes import find_tasks, wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(docker.why_not() is not None, reason=str(docker.why_not())),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with docker.engine(tmp_path_factory.mktemp("docker")) as variables:
        yield variables


def has_compose() -> bool:
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return plugin.returncode == 0 or shutil.which("docker-compose") is not None


@pytest.fixture(params=["docker", "compose"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "compose" and not has_compose():
        pytest.skip("neither docker compose nor docker-compose (Debian: docker-compose)")
    return str(request.param)


@pytest.fixture
def launch(launching: Phalanx, engine: dict[str, str], tmp_path: Path) -> Iterator[Phalanx]:
    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        return launching(*arguments, **{**engine, **more})

    yield run
    # A test that has failed must not make the next ones fail.
    if left_over(engine):
        for job in (tmp_path / "state/phalanx/jobs").glob("*.json"):
            run("cancel", job.stem)
        for container in ask(engine, "ps", "--all", "--quiet"):
            ask(engine, "rm", "--force", container)


def ask(engine: dict[str, str], *arguments: str) -> list[str]:
    return subprocess.run(
        ["docker", *arguments],
        env={**os.environ, **engine},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.split()


def left_over(engine: dict[str, str]) -> list[str]:
    """Containers, and networks that the engine does not have by itself."""
    networks = ask(engine, "network", "ls", "--filter", "type=custom", "--quiet")
    return ask(engine, "ps", "--all", "--quiet") + networks


def test_job_succeeds_after_a_killed_worker_restarts(
    launch: Phalanx, engine: dict[str, str], backend: str, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    shape = ["--workers", 2, "--ps", 1, "--restarts", 1, "--cpus", 0.5, "--memory", "256M"]
    done = launch("launch", backend, *docker.options(tmp_path), *shape, "train.py", 3)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: len(find_tasks("train.py")) == 4)
    wait_for(lambda: "step 2" in launch("logs", "train", "worker-1").stdout)
    os.kill(find_tasks("train.py")["worker-1"][0], signal.SIGKILL)
    wait_for(lambda: "1 restart" in launch("status", "train").stdout)
    (tmp_path / "hold").unlink()
    ended = launch("logs", "-f", "train")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("worker-1 | I am worker 1\n") == 2, ended.stdout
    assert not left_over(engine)


def test_cancelled_tasks_get_time_to_save(
    launch: Phalanx, engine: dict[str, str], backend: str, tmp_path: Path
) -> None:
    shape = ["--workers", 1, "--ps", 1]
    launch("launch", backend, *docker.options(tmp_path), *shape, "train.py", 600)
    wait_for(lambda: "step" in launch("logs", "train", "chief-0").stdout)
    assert launch("cancel", "train").returncode == 0
    assert launch("logs", "train", "chief-0").stdout.endswith("saving\nsaved\n")
    assert not left_over(engine)


def test_killed_supervisor_leaves_nothing_behind(
    launch: Phalanx, engine: dict[str, str], backend: str, tmp_path: Path
) -> None:
    launch("launch", backend, *docker.options(tmp_path), "--workers", 1, "train.py", 600)
    wait_for(lambda: len(find_tasks("train.py")) == 2)
    os.kill(int((tmp_path / "state/phalanx/jobs/train/lock").read_text()), signal.SIGKILL)
    wait_for(lambda: not left_over(engine))
    assert not find_tasks("train.py")


def board_answers() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.0.1:6006", timeout=5) as response:
            return b"TensorBoard" in response.read()
    except OSError:
        return False


def test_tensorboard_serves_while_the_job_runs(
    launch: Phalanx, engine: dict[str, str], backend: str, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 6006)) == 0:
            pytest.skip("something else has the port 6006")
    board = ["--tensorboard", "--model-dir", "/app"]
    done = launch("launch", backend, *docker.options(tmp_path), *board, "train.py", 600)
    assert done.returncode == 0, done.stderr
    wait_for(board_answers)
    assert launch("cancel", "train").returncode == 0
    assert not left_over(engine)
    assert not board_answers()


def test_google_cloud_key_is_mounted(launch: Phalanx, backend: str, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text("the key")
    (tmp_path / "read.py").write_text(
        "import os; print(open(os.environ['GOOGLE_APPLICATION_CREDENTIALS']).read())"
    )
    key = ["--credentials", "key.json"]
    done = launch("launch", backend, *docker.options(tmp_path), *key, "--follow", "read.py")
    assert done.stdout == "chief-0 | the key\n", done.stderr


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        (["--image", "none:1"], {}, "nothing was started: "),
        ([], {"DOCKER_HOST": "unix:///nowhere"}, "Cannot connect to the Docker daemon"),
        ([], {"PATH": "/nonexistent"}, "nothing was started: there is "),
        (["--gpus", "1"], {}, ""),
    ],
)
def test_job_that_cannot_start_leaves_nothing_behind(
    launch: Phalanx,
    engine: dict[str, str],
    backend: str,
    tmp_path: Path,
    options: list[str],
    variables: dict[str, str],
    said: str,
) -> None:
    command = [*docker.options(tmp_path), *options, "--follow", "train.py", 1]
    done = launch("launch", backend, *command, **variables)
    assert done.returncode == (2 if said else 1)
    assert said in done.stderr
    assert not left_over(engine)


def test_built_image_runs_without_root(
    launch: Phalanx, engine: dict[str, str], tmp_path: Path
) -> None:
    docker.import_base(engine, "base:1")
    with zipfile.ZipFile(tmp_path / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "word = 'installed'")
        wheel.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0"
        )
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    (tmp_path / "requirements.txt").write_text("tiny==1.0\n")
    (tmp_path / "say.py").write_text(
        "import os, tiny; open('new', 'w'); print(tiny.word, os.getuid(), *sorted(os.listdir()))"
    )
    options = ["--requirements", "requirements.txt", "--wheel", "tiny-1.0-py3-none-any.whl"]
    built = launch("image", *options, "--base", "base:1", "--build", "say:1", "say.py")
    assert built.returncode == 0, built.stderr
    done = launch("launch", "docker", "--image", "say:1", "--follow", "say.py")
    warned, printed = done.stdout.splitlines()
    assert "without Phalanx in python, this task has open ports" in warned
    assert printed == "chief-0 | installed 1000 new say.py", done.stderr
    broken = launch("image", *options, "--base", "none:1", "--build", "say:2", "say.py")
    assert broken.returncode == 2
    assert "nothing was built: see the error of docker above" in broken.stderr


def test_tensorflow_trains_with_a_killed_worker(
    launch: Phalanx, backend: str, tmp_path: Path, train_with_tensorflow: Callable[..., None]
) -> None:
    train_with_tensorflow(launch, backend, *docker.options(tmp_path), "--cpus", 1, python="")


def test_data_workers_serve_each_example_once(
    launch: Phalanx, backend: str, tmp_path: Path, read_from_data_workers: Callable[..., None]
) -> None:
    read_from_data_workers(launch, backend, *docker.options(tmp_path), python="")
