"""`phalanx launch slurm` with a real Slurm of three nodes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launch.elastic_job import run_elastic_job
from tests.servers import slurm
from tests.servers.processes import find_tasks, wait_for

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(slurm.why_not() is not None, reason=str(slurm.why_not())),
]
SHAPE = ["--workers", 2, "--ps", 1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm.three_nodes(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def launch(launching: Phalanx, cluster: dict[str, str]) -> Phalanx:
    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        return launching(*arguments, **{**cluster, **more})

    return run


def test_job_succeeds_after_a_killed_worker_restarts(launch: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    where = ["--nodes", 3, "--cpus", 1, "--restarts", 1]
    done = launch("launch", "slurm", *SHAPE, *where, "train.py", 3, "{role} {worker_hosts}")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: len(find_tasks("train.py")) == 4)
    wait_for(lambda: "step 2" in launch("logs", "train", "worker-1").stdout)
    os.kill(find_tasks("train.py")["worker-1"][0], signal.SIGKILL)
    wait_for(lambda: "1 restart" in launch("status", "train").stdout)
    (tmp_path / "hold").unlink()
    ended = launch("logs", "-f", "train")
    assert ended.returncode == 0, ended.stderr
    assert "train succeeded" in ended.stderr
    assert "worker-1 failed with exit code 137: restart 1 of 1" in ended.stdout
    first = launch("logs", "train", "chief-0").stdout.splitlines()[0]
    assert len({address.partition(":")[0] for address in first.split()[-1].split(",")}) == 2
    assert "ps-0      ended" in launch("status", "train").stdout
    assert not find_tasks("train.py")


def test_roles_with_different_resources_run_as_a_heterogeneous_job(launch: Phalanx) -> None:
    needs = ["--cpus", 1, "--cpus", "ps=2", "--log-dir", "my %u logs"]
    done = launch("launch", "slurm", *SHAPE, *needs, "--follow", "train.py", 2)
    assert done.returncode == 0, done.stderr
    assert "worker-1 | I am worker 1\n" in done.stdout


def test_cancelled_tasks_get_time_to_save(launch: Phalanx) -> None:
    launch("launch", "slurm", *SHAPE, "--requeue", "train.py", 600)
    wait_for(lambda: "step" in launch("logs", "train", "worker-1").stdout)
    assert launch("cancel", "train").returncode == 0
    for task in ("chief-0", "worker-0", "worker-1"):
        assert launch("logs", "train", task).stdout.endswith("saving\nsaved\n")
    assert launch("status", "train").stdout.startswith("train: failed: ended by SIGTERM")
    assert not find_tasks("train.py")


def test_requeued_job_starts_again(
    launch: Phalanx, cluster: dict[str, str], tmp_path: Path
) -> None:
    launch("launch", "slurm", "--workers", 1, "--requeue", "train.py", 600)
    wait_for(lambda: len(find_tasks("train.py")) == 2)
    wait_for(lambda: "step" in launch("logs", "train", "chief-0").stdout)
    before = find_tasks("train.py")
    # What Slurm does shortly before the time limit.
    notice = ["scancel", "--batch", "--signal=TERM", "--name=train"]
    subprocess.run(notice, env={**os.environ, **cluster}, check=True)
    wait_for(
        lambda: "the job is requeued" in (tmp_path / "phalanx-logs/train/batch.log").read_text()
    )
    assert "saved\n" in launch("logs", "train", "chief-0").stdout
    assert launch("status", "train").stdout.startswith("train: running\n")
    # Slurm waits for two minutes before it starts the job again; that is enough of a proof.
    assert find_tasks("train.py") != before
    assert launch("cancel", "train").returncode == 0


def test_task_that_fails_after_all_restarts_fails_the_job(launch: Phalanx) -> None:
    done = launch("launch", "slurm", *SHAPE, "--follow", "train.py", "many")
    assert done.returncode == 1
    assert "failed with exit code 1" in done.stderr
    assert "ValueError: invalid literal" in done.stderr


def test_script_runs_inside_an_allocation(
    launch: Phalanx, cluster: dict[str, str], tmp_path: Path, environ: dict[str, str]
) -> None:
    script = launch("launch", "slurm", *SHAPE, "--dry-run", "train.py", 1).stdout
    done = subprocess.run(
        ["salloc", "--ntasks=4", "bash"],
        input=script,
        cwd=tmp_path,
        env={**environ, **cluster},
        text=True,
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "phalanx: succeeded\n"
    assert (tmp_path / "phalanx-logs/train/chief-0.log").read_text() == "I am chief 0\nstep 0\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--partition", "none"], "Invalid partition name specified"),
        (["--cpus", "64"], "nothing was submitted: "),
        (["--nodes", "2", "--workers", "20", "--cpus", "4"], "nothing was submitted: "),
    ],
)
def test_job_that_slurm_rejects_is_reported(launch: Phalanx, options: list[str], said: str) -> None:
    done = launch("launch", "slurm", *options, "train.py", 1)
    assert done.returncode == 2
    assert said in done.stderr
    assert launch("status").stdout == ""


def test_job_that_does_not_start_in_time_is_cancelled(launch: Phalanx) -> None:
    held = ["--sbatch-option=--hold", "--start-within", "2s"]
    done = launch("launch", "slurm", *held, "train.py", 1)
    assert done.returncode == 2
    assert "cancelled: chief-0 had not started after 2 s (Slurm reports PENDING: Job" in done.stderr
    assert launch("status").stdout == ""


def test_missing_slurm_is_reported(launching: Phalanx, tmp_path: Path) -> None:
    done = launching("launch", "slurm", "train.py", 1, PATH="/nonexistent")
    assert done.returncode == 2
    assert "there is no command sbatch" in done.stderr
    assert not (tmp_path / "phalanx-logs").exists()


def test_tensorflow_trains_with_a_killed_worker(
    launch: Phalanx, train_with_tensorflow: Callable[..., None]
) -> None:
    # The nodes share this machine's ports, so they can only be tried one at a time.
    train_with_tensorflow(launch, "slurm", "--nodes", 1, "--cpus", 1)


def test_data_workers_serve_each_example_once(
    launch: Phalanx, read_from_data_workers: Callable[..., None]
) -> None:
    # A node has four processors here.
    read_from_data_workers(launch, "slurm", "--nodes", 1, servers=1)


def test_elastic_job_goes_on_without_a_killed_worker_and_scales(
    launch: Phalanx, tmp_path: Path
) -> None:
    run_elastic_job(launch, tmp_path, "slurm", "--nodes", 3, "--cpus", 1)


def test_cancelled_elastic_job_leaves_nothing(launch: Phalanx, tmp_path: Path) -> None:
    shape = ["--workers", 1, "--max-workers", 2, "--cpus", 1, "--cpus", "chief=2"]
    done = launch("launch", "slurm", *shape, "train.py", 600)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "step" in launch("logs", "train", "chief-0").stdout)
    wait_for(lambda: "step" in launch("logs", "train", "worker-0").stdout)
    assert launch("cancel", "train").returncode == 0
    assert launch("status", "train").stdout.startswith("train: failed: ended by SIGTERM")
    assert not find_tasks("train.py")
