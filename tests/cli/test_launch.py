"""The options of `phalanx launch`, phalanx.toml, and wrong use of either: exit code 2."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.cli.in_process import invoke

from phalanx.cli.launch.submission import launch
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.job_store import JobRecord, JobStore

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()


def plan(phalanx: Phalanx, *arguments: object) -> str:
    done = phalanx("launch", "slurm", "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'PROGRAM'"),
        (["--", "echo"], None),
        (["--command", "echo"], None),
        (["none.py"], "there is no file none.py"),
        (["--name", "My_Job", "train.py"], "'My_Job' cannot be a job's name"),
        (["--ps", "1", "train.py"], "1 ps but no worker"),
        (["--cpus", "many", "train.py"], "'many' is not a number of processors"),
        (["--cpus", "boss=2", "train.py"], "there is no role 'boss'"),
        (["--memory", "lots", "train.py"], "'lots' is not a size: write 512M"),
        (["--gpus", "0.5", "train.py"], "'0.5' is not a number of GPUs"),
        (["--time-limit", "soon", "train.py"], "'soon' is not a duration"),
        (["--env", "SEED", "train.py"], "'SEED' is not NAME=VALUE"),
        (["--env", "TF_CONFIG={}", "train.py"], "every task gets one of its own"),
        (["--file", "none.toml", "train.py"], "there is no file none.toml"),
        (["train.py", "{rank}"], "unknown placeholder {rank}"),
        (["--tensorboard", "train.py"], "slurm keeps no TensorBoard running: start it where"),
    ],
)
def test_wrong_use(phalanx: Phalanx, arguments: list[str], said: str | None) -> None:
    done = phalanx("launch", "slurm", "--dry-run", *arguments)
    assert done.returncode == (2 if said else 0)
    assert (said or "") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
@pytest.mark.parametrize(
    "command",
    [
        ["launch", "slurm", "--grace"],
        ["launch", "slurm", "--evaluator-linger"],
        ["cancel", "--timeout"],
        ["evaluate", "--wait"],
        ["serve", "--batch-wait"],
    ],
)
def test_a_time_is_one_that_passes(command: list[str], seconds: str) -> None:
    done = invoke(*command, seconds, ".")
    assert done.returncode == 2
    assert f"{seconds} is not from 0 to 100,000,000" in done.stderr


def test_every_time_is_written_in_the_same_ways(phalanx: Phalanx) -> None:
    times = ["--time-limit", "1h30m", "--grace", "2m", "--linger", 0, "--evaluator-linger", "1.5h"]
    text = plan(phalanx, *times, "--notice", "2m", "train.py")
    assert "--time=90\n" in text
    assert "--signal=B:TERM@120\n" in text
    assert "grace=120 linger=0 evaluator_linger=5400\n" in text


@pytest.mark.parametrize("backend", ["kubernetes", "kubeflow", "trainjob"])
def test_part_of_a_second_is_not_no_time_at_all(backend: str) -> None:
    times = ["--time-limit", "0.5s", "--grace", "0.5"]
    done = invoke("launch", backend, "--dry-run", "--image", "x", *times, "train.py")
    assert "activeDeadlineSeconds: 1\n" in done.stdout
    assert "terminationGracePeriodSeconds: 1\n" in done.stdout


def test_an_unknown_backend(phalanx: Phalanx) -> None:
    done = phalanx("launch", "nomad", "train.py")
    assert done.returncode == 2
    assert "No such command 'nomad'" in done.stderr


def test_an_amount_for_one_role_weighs_more_than_one_for_all(phalanx: Phalanx) -> None:
    text = plan(phalanx, "--workers", 1, "--cpus", "worker=8", "--cpus", 2, "train.py")
    assert "cpus=([chief]=2 [worker]=8)" in text


@pytest.mark.parametrize(
    ("backend", "given"),
    [
        ("docker", ["--cpus=3 --memory=2147483648", "device=0"]),
        ("compose", ["cpus: 3.0", "mem_limit: 2147483648", "device_ids"]),
        ("swarm", ["cpus: '3'", "memory: '2147483648'", "NVIDIA-GPU"]),
        ("kubernetes", ["cpu: 3000m", "memory: '2147483648'", "nvidia.com/gpu: '1'"]),
        ("kubeflow", ["cpu: 3000m", "memory: '2147483648'", "nvidia.com/gpu: '1'"]),
        ("trainjob", ["cpu: 3000m", "memory: '2147483648'", "nvidia.com/gpu: '1'"]),
        ("marathon", ['"cpus": 3.0', '"mem": 2048', '"gpus": 1']),
        ("ray", ["CPU: 3.0", "memory: 2147483648", "GPU: 1"]),
        ("slurm", ["--cpus-per-task=3", "--mem-per-cpu=683M", "--gpus-per-task=1"]),
        ("ssh", ["OMP_NUM_THREADS=3", "CUDA_VISIBLE_DEVICES=0"]),
    ],
)
def test_every_backend_gives_a_role_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, given: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    where = {
        "ssh": ["--host", "a"],
        "marathon": ["--url", "http://m:8080", "--image", "x", "--memory", "1G"],
    }
    more = where.get(backend, [] if backend in ("slurm", "ray") else ["--image", "x"])
    memory = [] if backend == "ssh" else ["--memory", "worker=2G"]
    amounts = ["--cpus", "worker=3", "--gpus", "worker=1", *memory]
    shape = ["--workers", 1, "--ps", 1]
    done = invoke("launch", backend, "--dry-run", *more, *shape, *amounts, "train.py")
    assert done.returncode == 0, done.stderr
    assert [each for each in given if each not in done.stdout] == []
    alike = invoke("launch", backend, "--dry-run", *more, *shape, "train.py")
    assert [each for each in given if each in alike.stdout] == []


def test_memory_over_ssh_is_refused(phalanx: Phalanx) -> None:
    done = phalanx("launch", "ssh", "--dry-run", "--host", "a", "--memory", "2G", "train.py")
    assert done.returncode == 2
    assert "phalanx launch ssh limits no memory: leave out --memory" in done.stderr


def test_a_job_that_cannot_be_remembered_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting:
        cancelled = False

        def facts(self) -> NoReturn:
            raise KeyboardInterrupt

        def cancel(self) -> None:
            self.cancelled = True

    class Quick:
        handle = Waiting()

        def plan(self, job: Job) -> None:
            """Nothing to do."""

        def submit(self, plan: None) -> Waiting:
            return self.handle

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    launcher: Any = Quick()
    job = Job("digits", Program(ProgramKind.FILE, "train.py"))
    with pytest.raises(KeyboardInterrupt):
        launch("quick", launcher, job, {"dry_run": False})
    assert launcher.handle.cancelled


@pytest.mark.parametrize(
    ("launcher", "facts", "why"),
    [
        ("slurm", {"number": "7", "log_dir": "x", "counts": {}}, "there is no command scontrol"),
        ("slurm", {"id": 7}, "digits was launched by another version of Phalanx"),
        ("ssh", {"directory": None}, "digits was launched by another version of Phalanx"),
    ],
)
def test_a_job_whose_manager_is_gone_can_be_forgotten(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
    facts: dict[str, object],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    JobStore.of_user().write(JobRecord("digits", launcher, facts))
    assert f"digits  {launcher}  unknown: {why}" in invoke("status").stdout
    again = invoke("launch", "slurm", "--name", "digits", "train.py")
    assert again.returncode == 2
    assert f"already a job 'digits' ({launcher}), and what became of it is" in again.stderr
    refused = invoke("cancel", "digits")
    assert refused.returncode == 1
    assert why in refused.stderr
    assert "delete the record with: phalanx cancel --forget digits" in refused.stderr
    forgotten = invoke("cancel", "--forget", "digits")
    assert forgotten.returncode == 0
    assert "the record of digits is deleted; tasks that still run are not ended" in forgotten.stderr
    assert invoke("cancel", "--forget", "digits").returncode == 2


def test_a_dry_run_leaves_nothing(phalanx: Phalanx, tmp_path: Path) -> None:
    plan(phalanx, "train.py")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


FILE = """
name = "digits"
program = "train.py"
arguments = ["--rate", 0.1]
workers = 2
evaluator = true
cpus = { worker = 4, chief = 1, evaluator = 1 }

[env]
SEED = 7

[slurm]
partition = "gpu"
workers = 3

[ssh]
host = ["a", "b"]
"""


def test_the_job_file_says_it_all(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "phalanx.toml").write_text(FILE)
    text = plan(phalanx)
    assert "--job-name=digits\n" in text
    assert "--partition=gpu\n" in text
    assert "count=([chief]=1 [worker]=3 [evaluator]=1) cpus=([chief]=1 [worker]=4" in text
    assert "env SEED=7 " in text
    assert " train.py --rate 0.1\n" in text


def test_what_is_on_the_command_line_weighs_more(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(FILE)
    text = plan(phalanx, "-f", "my.toml", "--workers", 5, "--env", "SEED=8", "train.py", "--fast")
    assert "[worker]=5" in text
    assert "env SEED=8 " in text
    assert " train.py --fast\n" in text


def test_one_file_serves_several_backends(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "phalanx.toml").write_text(FILE)
    done = phalanx("launch", "ssh", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '"worker": ["b:2222", "a:2223"]' in done.stdout


def test_help_is_given_whatever_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phalanx.toml").write_text("wrokers = 2")
    for flag in ("--help", "-h"):
        assert invoke("launch", "slurm", flag).returncode == 0
    # This one is the program's.
    assert invoke("launch", "slurm", "--dry-run", "train.py", "--help").returncode == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("wrokers = 2", "phalanx.toml: there is no setting 'wrokers': did you mean workers?"),
        ("workers = 'two'", "Invalid value for '--workers': 'two'"),
        ("workers = [2]", "workers must be a single value"),
        ("evaluator = 1", "evaluator must be true or false, not 1"),
        ("name = true", "name must be a number or a text, not True"),
        ("slurm = 3", "slurm must be a table"),
        ("workers = ", "phalanx.toml cannot be read: "),
        ("[slurm]\nhost = 'a'", "there is no setting 'host'"),
    ],
)
def test_a_wrong_job_file(phalanx: Phalanx, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "phalanx.toml").write_text(content)
    done = phalanx("launch", "slurm", "--dry-run", "train.py")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
