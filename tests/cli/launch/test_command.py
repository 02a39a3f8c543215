"""The options of `phalanx launch`, and wrong use of them: exit code 2."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.in_process import invoke

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
        (["--tensorboard", "train.py"], "slurm cannot run TensorBoard: start it where"),
    ],
)
def test_wrong_use_exits_with_2(phalanx: Phalanx, arguments: list[str], said: str | None) -> None:
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
def test_invalid_duration_is_rejected(command: list[str], seconds: str) -> None:
    done = invoke(*command, seconds, ".")
    assert done.returncode == 2
    assert f"{seconds} is not from 0 to 100,000,000" in done.stderr


def test_all_durations_have_the_same_format(phalanx: Phalanx) -> None:
    times = ["--time-limit", "1h30m", "--grace", "2m", "--linger", 0, "--evaluator-linger", "1.5h"]
    text = plan(phalanx, *times, "--notice", "2m", "train.py")
    assert "--time=90\n" in text
    assert "--signal=B:TERM@120\n" in text
    assert "grace=120 linger=0 evaluator_linger=5400\n" in text


@pytest.mark.parametrize("backend", ["kubernetes", "kubeflow", "trainjob"])
def test_fraction_of_a_second_is_rounded_up(backend: str) -> None:
    times = ["--time-limit", "0.5s", "--grace", "0.5"]
    done = invoke("launch", backend, "--dry-run", "--image", "x", *times, "train.py")
    assert "activeDeadlineSeconds: 1\n" in done.stdout
    assert "terminationGracePeriodSeconds: 1\n" in done.stdout


def test_unknown_backend_is_rejected(phalanx: Phalanx) -> None:
    done = phalanx("launch", "nomad", "train.py")
    assert done.returncode == 2
    assert "No such command 'nomad'" in done.stderr


def test_amount_for_one_role_takes_precedence(phalanx: Phalanx) -> None:
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
def test_every_backend_requests_the_resources_of_a_role(
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


@pytest.mark.parametrize(
    "backend",
    ["compose", "docker", "kubeflow", "kubernetes", "marathon", "ray", "swarm", "trainjob"],
)
@pytest.mark.parametrize("option", ["--min-workers=0", "--max-workers=4", "--rejoin=1m"])
def test_backends_that_cannot_scale_refuse_elastic_jobs(backend: str, option: str) -> None:
    done = invoke("launch", backend, option, "--dry-run", "train.py")
    assert done.returncode == 2
    assert f"phalanx launch {backend} cannot change the number of workers" in done.stderr


def test_ssh_rejects_memory(phalanx: Phalanx) -> None:
    done = phalanx("launch", "ssh", "--dry-run", "--host", "a", "--memory", "2G", "train.py")
    assert done.returncode == 2
    assert "phalanx launch ssh cannot limit memory: leave out --memory" in done.stderr


def test_dry_run_writes_nothing(phalanx: Phalanx, tmp_path: Path) -> None:
    plan(phalanx, "train.py")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("flag", ["--controller-account", "--conductor-account"])
def test_former_flag_still_works(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shape = ["--dry-run", "--image", "x", "--workers", "1"]
    done = invoke("launch", "kubernetes", *shape, flag, "trusted", "train.py")
    assert "serviceAccountName: trusted\n" in done.stdout
    (tmp_path / "phalanx.toml").write_text(f'kubernetes.{flag.removeprefix("--")} = "trusted"')
    assert invoke("launch", "kubernetes", *shape, "train.py").stdout == done.stdout
    assert "--conductor-account" not in invoke("launch", "kubernetes", "--help").stdout


LAUNCHERS = """
from phalanx.launch.options import Option

class Plan:
    def __init__(self, text): self.text = text
    def render(self): return self.text

class Plain:
    def plan(self, job): return Plan(f"plain {job.needs(job.tasks()[0].role).cpus}")
    def submit(self, plan): ...
    @classmethod
    def attach(cls, facts): ...

class Configurable(Plain):
    launch_help = "Start a job in a region."
    launch_options = (Option("--region", "The region.", metavar="NAME", default="eu"),)
    def __init__(self, region): self.region = region
    @classmethod
    def from_options(cls, job, values): return cls(values["region"])
    def plan(self, job): return Plan(f"{job.name} in {self.region}")

class Broken:
    pass
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that adds launchers."""
    names = ("Plain", "Configurable", "Broken")
    (tmp_path / "their_backends.py").write_text(LAUNCHERS)
    info = tmp_path / "their_backends-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-backends\nVersion: 1.0\n")
    points = "".join(f"{name.lower()} = their_backends:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[phalanx.launchers]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("package")
def test_launcher_of_another_package_declares_its_options(tmp_path: Path) -> None:
    text = invoke("launch", "configurable", "--help").stdout
    assert "Start a job in a region." in text
    assert "--region NAME" in text
    assert "--cpus" not in text
    dry_run = ["launch", "configurable", "--dry-run"]
    assert invoke(*dry_run, "train.py").stdout == "train in eu\n"
    assert invoke(*dry_run, "--region", "us", "train.py").stdout == "train in us\n"
    (tmp_path / "phalanx.toml").write_text('configurable.region = "asia"')
    assert invoke(*dry_run, "train.py").stdout == "train in asia\n"


@pytest.mark.usefixtures("package")
def test_launcher_without_declared_options_gets_the_common_ones() -> None:
    assert invoke("launch", "plain", "--dry-run", "--cpus", 2, "train.py").stdout == "plain 2.0\n"
    assert "phalanx launch plain --workers 2 train.py" in invoke("launch", "plain", "--help").stdout


@pytest.mark.usefixtures("package")
def test_broken_launcher_fails_only_when_it_is_called() -> None:
    assert "broken" in invoke("launch", "--help").stdout
    done = invoke("launch", "broken", "train.py")
    assert done.returncode == 2
    assert "the launcher 'broken' has no method plan and no submit" in done.stderr
