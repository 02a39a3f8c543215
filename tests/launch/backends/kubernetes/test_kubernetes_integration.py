"""`phalanx launch kubernetes` against a small Kubernetes that runs the pods for real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers import kubernetes
from tests.servers.processes import find_tasks, wait_for

pytestmark = pytest.mark.slow

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
HOSTS = {
    "kubernetes": "train-ps-0.train",
    "kubeflow": "train-ps-0.default.svc",
    "trainjob": "train-ps-0-0.train",
}
BACKENDS = list(HOSTS)
OPTIONS = ["--image", "digits:1", "--python", sys.executable]


@pytest.fixture
def cluster(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[kubernetes.Kubernetes, dict[str, str]]]:
    with kubernetes.running(tmp_path_factory.mktemp("kubernetes"), tmp_path) as started:
        yield started


@pytest.fixture
def launch(launching: Phalanx, cluster: tuple[kubernetes.Kubernetes, dict[str, str]]) -> Phalanx:
    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        return launching(*arguments, **{**cluster[1], **more})

    return run


@pytest.mark.parametrize("backend", BACKENDS)
def test_job_succeeds_after_a_killed_worker_restarts(
    launch: Phalanx,
    tmp_path: Path,
    cluster: tuple[kubernetes.Kubernetes, dict[str, str]],
    backend: str,
) -> None:
    (tmp_path / "hold").touch()
    shape = ["--workers", 2, "--ps", 1, "--restarts", 1]
    program = ["train.py", 3, "{role} {index} {ps_hosts} $(date) it's"]
    done = launch("launch", backend, *OPTIONS, *shape, *program)
    assert done.returncode == 0, done.stderr
    said = f"I am worker 1 worker 1 {HOSTS[backend]}:2222 $(date) it's\n"
    wait_for(lambda: launch("logs", "train", "worker-1").stdout.count(said) == 1)
    wait_for(lambda: len(find_tasks("train.py")) == 4)
    os.kill(find_tasks("train.py")["worker-1"][0], signal.SIGKILL)
    wait_for(lambda: "1 restart" in launch("status", "train").stdout)
    # Pods may be removed when the job is over, and their output with them.
    wait_for(lambda: launch("logs", "train", "worker-1").stdout.count(said) == 2)
    (tmp_path / "hold").unlink()
    ended = launch("logs", "-f", "train")
    assert ended.returncode == 0, ended.stderr
    assert "ps-0      ended" in launch("status", "train").stdout
    assert not find_tasks("train.py")
    again = launch("launch", backend, *OPTIONS, *shape, *program)
    assert again.returncode == 2
    assert (
        "already exists (delete that of an earlier job with: phalanx cancel train;" in again.stderr
    )
    assert launch("cancel", "train").returncode == 0
    assert cluster[0].objects == {}


@pytest.mark.parametrize(
    ("backend", "objects"), [("kubernetes", 10), ("kubeflow", 4), ("trainjob", 5)]
)
def test_cancelled_job_leaves_nothing_behind(
    launch: Phalanx,
    tmp_path: Path,
    cluster: tuple[kubernetes.Kubernetes, dict[str, str]],
    backend: str,
    objects: int,
) -> None:
    (tmp_path / "key.json").touch()
    more = ["--credentials", "key.json", "--workers", 1]
    launch("launch", backend, *OPTIONS, *more, "train.py", 600)
    assert len(cluster[0].objects) == objects
    wait_for(lambda: "step" in launch("logs", "train", "chief-0").stdout)
    cancelled = launch("cancel", "train")
    assert cancelled.returncode == 0, cancelled.stderr
    assert not find_tasks("train.py")
    assert cluster[0].objects == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_task_that_fails_after_all_restarts_fails_the_job(launch: Phalanx, backend: str) -> None:
    done = launch("launch", backend, *OPTIONS, "--workers", 1, "--follow", "train.py", "many")
    assert done.returncode == 1
    assert "failed with exit code 1" in done.stderr
    assert "ValueError: invalid literal" in done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_job_beyond_its_quota_is_reported(
    launch: Phalanx, cluster: tuple[kubernetes.Kubernetes, dict[str, str]], backend: str
) -> None:
    cluster[0].quota = "exceeded quota: team, requested: cpu=64"
    done = launch("launch", backend, *OPTIONS, "--cpus", 64, "train.py", 1)
    assert done.returncode == 2
    assert "nothing was submitted: Kubernetes does not start it: Error creating" in done.stderr
    assert "is forbidden: exceeded quota: team, requested: cpu=64" in done.stderr
    assert cluster[0].objects == {}


def test_job_with_a_missing_image_is_removed(
    launch: Phalanx, cluster: tuple[kubernetes.Kubernetes, dict[str, str]]
) -> None:
    waiting = {"reason": "ErrImagePull", "message": "digits:1: not found"}
    cluster[0].waiting = {
        "phase": "Pending",
        "containerStatuses": [{"state": {"waiting": waiting}}],
    }
    done = launch("launch", "kubernetes", *OPTIONS, "train.py", 600)
    assert done.returncode == 2
    assert "Kubernetes does not start it: ErrImagePull: digits:1: not found" in done.stderr
    assert cluster[0].objects == {}


def test_job_that_does_not_start_in_time_is_cancelled(
    launch: Phalanx, cluster: tuple[kubernetes.Kubernetes, dict[str, str]]
) -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    condition = {**scheduled, "message": "0/3 nodes are available: 3 Insufficient cpu."}
    cluster[0].waiting = {"phase": "Pending", "conditions": [condition]}
    limit = ["--start-within", "2s"]
    done = launch("launch", "kubernetes", *OPTIONS, *limit, "train.py", 600)
    assert done.returncode == 2
    assert (
        "train was cancelled: chief-0 had not started after 2 s (Unschedulable: 0/3" in done.stderr
    )
    assert cluster[0].objects == {}
    assert launch("status").stdout == ""


def test_object_that_cannot_be_created_leaves_nothing_behind(
    launch: Phalanx, cluster: tuple[kubernetes.Kubernetes, dict[str, str]]
) -> None:
    cluster[0].objects["Job", "train-chief"] = {
        "spec": {},
        "status": {"conditions": [{"type": "Failed"}]},
    }
    done = launch("launch", "kubernetes", *OPTIONS, "train.py", 1)
    assert done.returncode == 2
    assert (
        'nothing was submitted: Job train-chief: jobs "train-chief" already exists' in done.stderr
    )
    assert list(cluster[0].objects) == [("Job", "train-chief")]


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        (
            ["--namespace", "forbidden"],
            {},
            'secrets is forbidden: User "me" cannot create resource',
        ),
        (["--context", "none"], {}, "no Kubernetes cluster is known here"),
        ([], {"KUBECONFIG": "/nonexistent"}, "no Kubernetes cluster is known here"),
    ],
)
def test_missing_cluster_or_permission_is_reported(
    launch: Phalanx, options: list[str], variables: dict[str, str], said: str
) -> None:
    done = launch("launch", "kubernetes", *OPTIONS, *options, "train.py", 1, **variables)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_permission_to_create_roles_suggests_an_account(
    launch: Phalanx, cluster: tuple[kubernetes.Kubernetes, dict[str, str]]
) -> None:
    cluster[0].refused = {"roles"}
    done = launch("launch", "kubernetes", *OPTIONS, "--workers", 1, "train.py", 1)
    assert done.returncode == 2
    assert "Role train-controller: roles is forbidden: User" in done.stderr
    assert "get and patch Jobs: --controller-account" in done.stderr
    assert cluster[0].objects == {}


@pytest.fixture
def isolated(
    launching: Phalanx, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Phalanx]:
    """Each pod with a network of its own."""
    if os.getuid() != 0 or not shutil.which("ip"):
        pytest.skip("networks need root and ip (iproute2)")
    folder = tmp_path_factory.mktemp("kubernetes")
    with kubernetes.running(folder, tmp_path, isolated=True) as (_, variables):

        def launch(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
            return launching(*arguments, **{**variables, **more})

        yield launch


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensorflow_trains_with_a_killed_worker(
    isolated: Phalanx, train_with_tensorflow: Callable[..., None], backend: str
) -> None:
    train_with_tensorflow(isolated, backend, "--image", "digits:1", "--cpus", 1)


@pytest.mark.parametrize("backend", ["kubernetes", "trainjob"])
def test_data_workers_serve_each_example_once(
    isolated: Phalanx, read_from_data_workers: Callable[..., None], backend: str
) -> None:
    read_from_data_workers(isolated, backend, "--image", "digits:1")
