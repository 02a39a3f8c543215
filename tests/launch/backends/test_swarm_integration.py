"""`phalanx launch swarm` with three real engines, each in a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers import docker
from tests.servers.processes import find_tasks, wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
WHY_NOT = docker.why_not() or (None if shutil.which("nsenter") else "nsenter is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, str]]]:
    with docker.swarm(tmp_path_factory.mktemp("swarm"), 3) as found:
        yield found


@pytest.fixture
def launch(launching: Phalanx, engines: list[dict[str, str]]) -> Iterator[Phalanx]:
    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        # The kernel of a test machine may lack IPsec.
        plain = ["--no-encryption"] if arguments[:2] == ("launch", "swarm") else []
        return launching(*arguments[:2], *plain, *arguments[2:], **{**engines[0], **more})

    yield run
    # A test that has failed must not make the next ones fail.
    for service in ask(engines[0], "service", "ls", "--quiet"):
        ask(engines[0], "service", "rm", service)
    wait_for(lambda: not any(ask(engine, "ps", "--quiet") for engine in engines))


def ask(engine: dict[str, str], *arguments: str) -> list[str]:
    return subprocess.run(
        ["docker", *arguments],
        env={**os.environ, **engine},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.split()


def left_over(engines: list[dict[str, str]]) -> list[str]:
    """Services, containers and networks that no swarm has by itself."""
    found = ask(engines[0], "service", "ls", "--quiet")
    for engine in engines:
        found += ask(engine, "ps", "--all", "--quiet")
        found += ask(engine, "network", "ls", "--format={{.Name}}", "--filter=driver=overlay")
    return [each for each in found if each != "ingress"]


def test_job_succeeds_after_a_killed_worker_restarts(
    launch: Phalanx, engines: list[dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    shape = ["--workers", 2, "--ps", 1, "--restarts", 1, "--cpus", 0.1, "--memory", "256M"]
    done = launch("launch", "swarm", *docker.options(tmp_path), *shape, "train.py", 3)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: len(find_tasks("train.py")) == 4)
    assert all(ask(engine, "ps", "--quiet") for engine in engines), "not on every engine"
    wait_for(lambda: "step 2" in launch("logs", "train", "worker-1").stdout)
    os.kill(find_tasks("train.py")["worker-1"][0], signal.SIGKILL)
    wait_for(lambda: "1 restart" in launch("status", "train").stdout)
    wait_for(lambda: len(find_tasks("train.py")) == 4)
    (tmp_path / "hold").unlink()
    ended = launch("logs", "-f", "train")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("worker-1 | I am worker 1\n") == 2, ended.stdout
    assert ended.stdout.count("chief-0  | step 2\n") == 1, ended.stdout
    wait_for(lambda: not left_over(engines))


def test_task_on_a_lost_node_moves_to_another_node(
    launch: Phalanx, engines: list[dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    shape = ["--workers", 2, "--restarts", 1]
    launch("launch", "swarm", *docker.options(tmp_path), *shape, "train.py", 1)
    wait_for(lambda: len(find_tasks("train.py")) == 3)
    task = ask(engines[2], "ps", '--format={{.Label "phalanx.task"}}')[0]
    with docker.cut_off(2):
        wait_for(lambda: f"the node of train_{task} is lost" in launch("logs", "train").stdout)
        wait_for(lambda: len(find_tasks("train.py")[task]) == 2)
    # Back again, it hears that it was given up.
    wait_for(lambda: len(find_tasks("train.py")[task]) == 1)
    (tmp_path / "hold").unlink()
    ended = launch("logs", "-f", "train")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    wait_for(lambda: not left_over(engines))


def test_cancelled_tasks_get_time_to_save(
    launch: Phalanx, engines: list[dict[str, str]], tmp_path: Path
) -> None:
    shape = ["--workers", 1, "--ps", 1]
    launch("launch", "swarm", *docker.options(tmp_path), *shape, "train.py", 600)
    wait_for(lambda: "step" in launch("logs", "train", "chief-0").stdout)
    assert launch("cancel", "train").returncode == 0
    assert launch("logs", "train", "chief-0").stdout.endswith("saving\nsaved\n")
    wait_for(lambda: not left_over(engines))


def test_tasks_run_on_nodes_with_their_label(
    launch: Phalanx, engines: list[dict[str, str]], tmp_path: Path
) -> None:
    node = ask(engines[2], "info", "--format={{.Swarm.NodeID}}")[0]
    ask(engines[0], "node", "update", "--label-add=gpu=yes", node)
    (tmp_path / "key.json").write_text("the key")
    (tmp_path / "read.py").write_text(
        "import os; print(open(os.environ['GOOGLE_APPLICATION_CREDENTIALS']).read())"
    )
    options = [*docker.options(tmp_path), "--credentials", "key.json", "--node-label", "gpu=yes"]
    launch("launch", "swarm", *options, "--workers", 1, "train.py", 600)
    wait_for(lambda: len(find_tasks("train.py")) == 2)
    assert [len(ask(engine, "ps", "--quiet")) for engine in engines] == [0, 0, 2]
    taken = launch("launch", "swarm", *options, "--name", "train", "train.py", 1)
    assert taken.returncode == 2
    assert "there is already a job 'train'" in taken.stderr
    launch("cancel", "train")
    wait_for(lambda: not left_over(engines))
    done = launch("launch", "swarm", *options, "--follow", "read.py")
    assert done.stdout == "chief-0 | the key\n", done.stderr


def test_waiting_task_reports_the_reason(
    launch: Phalanx, engines: list[dict[str, str]], tmp_path: Path
) -> None:
    label = ["--node-label", "planet=mars"]
    launch("launch", "swarm", *docker.options(tmp_path), *label, "train.py", 1)
    said = "Swarm reports pending: no suitable node (scheduling constraints not satisfied"
    wait_for(lambda: said in launch("status", "train").stdout)
    assert launch("cancel", "train").returncode == 0
    wait_for(lambda: not left_over(engines))


@pytest.mark.parametrize(
    ("engine", "options", "variables", "said"),
    [
        (0, ["--image", "none:1"], {}, "nothing was started: "),
        (1, [], {}, "nothing was started: this engine is not a manager of its swarm"),
        (0, [], {"DOCKER_HOST": "unix:///nowhere"}, "Cannot connect to the Docker daemon"),
        (0, [], {"PATH": "/nonexistent"}, "there is no command docker"),
    ],
)
def test_job_that_cannot_start_leaves_nothing_behind(
    launch: Phalanx,
    engines: list[dict[str, str]],
    tmp_path: Path,
    engine: int,
    options: list[str],
    variables: dict[str, str],
    said: str,
) -> None:
    command = [*docker.options(tmp_path), *options, "train.py", 1]
    done = launch("launch", "swarm", *command, **{**engines[engine], **variables})
    assert done.returncode == 2
    assert said in done.stderr
    assert not left_over(engines)


def test_existing_stack_of_the_same_name_is_rejected(
    launch: Phalanx, engines: list[dict[str, str]], tmp_path: Path
) -> None:
    stack = f'{{"version": "3.8", "services": {{"a": {{"image": "{docker.IMAGE}"}}}}}}'
    (tmp_path / "stack.yaml").write_text(stack)
    ask(engines[0], "stack", "deploy", "--compose-file", str(tmp_path / "stack.yaml"), "train")
    done = launch("launch", "swarm", *docker.options(tmp_path), "train.py", 1)
    assert done.returncode == 2
    assert "the swarm has a stack 'train' already" in done.stderr
    ask(engines[0], "stack", "rm", "train")
    wait_for(lambda: not left_over(engines))


def test_tensorflow_trains_with_a_killed_worker(
    launch: Phalanx, tmp_path: Path, train_with_tensorflow: Callable[..., None]
) -> None:
    train_with_tensorflow(launch, "swarm", *docker.options(tmp_path), python="")


def test_data_workers_serve_each_example_once(
    launch: Phalanx, tmp_path: Path, read_from_data_workers: Callable[..., None]
) -> None:
    read_from_data_workers(launch, "swarm", *docker.options(tmp_path), python="")
