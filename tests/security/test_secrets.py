"""Secrets reach the tasks, and neither a printed plan nor a command line."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.servers import kubernetes, slurm, sshd
from tests.servers.processes import wait_for

from phalanx import JobError
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.secrets import hide_values, read_secret

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
SECRET = "tok'en $HOME\n-----s3cret"
BACKENDS: dict[str, list[str]] = {
    "ssh": ["--host", "gpu1"],
    "slurm": [],
    "ray": [],
    "docker": ["--image", "digits:1"],
    "compose": ["--image", "digits:1"],
    "swarm": ["--image", "digits:1"],
    "kubernetes": ["--image", "digits:1"],
    "kubeflow": ["--image", "digits:1"],
    "trainjob": ["--image", "digits:1"],
    "marathon": ["--image", "digits:1", "--memory", "1G", "--url", "http://m"],
}


@pytest.fixture
def launching(phalanx: Phalanx, tmp_path: Path) -> Phalanx:
    """`phalanx` with a job store of its own."""

    def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
        return phalanx(*arguments, XDG_STATE_HOME=str(tmp_path / "state"), **more)

    return run


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import os; print(ascii(os.environ['TOKEN']))")
    path = tmp_path / "token"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("backend", BACKENDS)
def test_dry_run_hides_the_users_values(phalanx: Phalanx, secret: Path, backend: str) -> None:
    given = ["--env", "PASSWORD=hunter2", "--env", "TF_CPP_MIN_LOG_LEVEL=3"]
    command = ["launch", backend, *BACKENDS[backend], *given, "--dry-run"]
    done = phalanx(*command, "train.py")
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout
    assert "PASSWORD" in done.stdout
    assert "add --show-secrets" in done.stderr
    shown = phalanx(*command, "--show-secrets", "train.py")
    assert "hunter2" in shown.stdout
    assert shown.stderr == ""


def test_dry_run_of_a_local_run_hides_the_users_values(phalanx: Phalanx) -> None:
    done = phalanx("run", "--dry-run", "--env", "PASSWORD=hunter2", "--", "true")
    assert "PASSWORD='<hidden>' \\\n" in done.stdout
    assert "add --show-secrets" in done.stderr
    assert phalanx("run", "--dry-run", "--env", "OMP_NUM_THREADS=3", "--", "true").stderr == ""


def test_dry_run_hides_the_key_of_google_cloud(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text('{"private_key": "s3cret"}')
    encoded = base64.b64encode((tmp_path / "key.json").read_bytes()).decode()
    command = ["launch", "kubernetes", "--image", "a", "--credentials", "key.json", "--dry-run"]
    done = phalanx(*command, "train.py")
    assert encoded not in done.stdout
    assert "credentials.json: <hidden>" in done.stdout
    assert "add --show-secrets" in done.stderr
    assert encoded in phalanx(*command, "--show-secrets", "train.py").stdout


def test_settings_of_known_libraries_are_shown() -> None:
    shown = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": "a", "PYTHONPATH": "b", "PHALANX_PORT": "1"}
    assert hide_values(shown) == shown
    assert set(hide_values(dict.fromkeys(("SEED", "AWS_KEY", "TFX"), "7")).values()) == {"<hidden>"}
    named = ("PHALANX_SECRET", "TF_API_TOKEN", "KERAS_KEY_ID", "GRPC_PASSWORD", "TF_CREDENTIALS")
    assert set(hide_values(dict.fromkeys(named, "7")).values()) == {"<hidden>"}


def test_local_task_gets_the_content_of_the_file(phalanx: Phalanx, secret: Path) -> None:
    done = phalanx("run", "--env-from-secret", f"TOKEN={secret.name}", "train.py")
    assert done.stdout == f"chief-0 | {SECRET!a}\n"


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("token", 0o640, "has mode 0640, so others can access it: chmod 600"),
        ("none", 0o600, "cannot be read: No such file"),
        (".", 0o600, "cannot be read: Is a directory"),
    ],
)
def test_unusable_secret_starts_nothing(
    phalanx: Phalanx, secret: Path, tmp_path: Path, name: str, mode: int, message: str
) -> None:
    secret.chmod(mode)
    done = phalanx("run", "--env-from-secret", f"TOKEN={name}", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (tmp_path / "phalanx-logs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a\0b", "NUL byte"), (b"a" * 100_000, "too long"), (b"\xff\xfe", "not UTF-8")],
)
def test_content_that_is_no_variable_is_rejected(
    secret: Path, content: bytes, message: str
) -> None:
    secret.write_bytes(content)
    with pytest.raises(JobError, match=message):
        read_secret(str(secret))


def test_secret_and_plain_variable_of_one_name_is_an_error(phalanx: Phalanx, secret: Path) -> None:
    both = ["--env", "TOKEN=a", "--env-from-secret", "TOKEN=token"]
    assert "set by --env and by --env-from-secret" in phalanx("run", *both, "train.py").stderr
    config = phalanx("run", "--env-from-secret", "TF_CONFIG=token", "train.py")
    assert "every task gets one of its own" in config.stderr
    odd = phalanx("run", "--env-from-secret", "a-b=token", "train.py")
    assert "'a-b=token' is not NAME=SECRET" in odd.stderr


@pytest.mark.parametrize("name", ["a.b", "a-b", "1a", "ä", "", "a b"])
def test_name_that_no_shell_exports_is_refused_without_its_value(
    phalanx: Phalanx, secret: Path, name: str
) -> None:
    """It could reach the task only on a command line, which all users of a host can see."""
    for command in (["run"], ["launch", "docker", "--image", "a"], ["launch", "kubernetes"]):
        done = phalanx(*command, "--dry-run", "--env", f"{name}=hunter2", "train.py")
        assert done.returncode == 2
        assert "is not NAME=VALUE" in done.stderr
        assert "hunter2" not in done.stderr
    job = Job("a", Program(ProgramKind.FILE, "train.py"), environment={name: "hunter2"})
    with pytest.raises(JobError, match="cannot be the name of a variable") as error:
        job.validate()
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_are_not_in_the_command_of_a_process(
    phalanx: Phalanx, secret: Path, backend: str
) -> None:
    """What follows `docker run` or `ssh` in a plan, and what a script executes."""
    given = ["--env", "PASSWORD=hunter2", "--workers", 1, "--dry-run", "--show-secrets"]
    done = phalanx("launch", backend, *BACKENDS[backend], *given, "train.py")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        command = line.partition(" | ")[2] if backend == "ssh" else line
        if re.search(r"\b(docker|ssh|srun|exec|env)\b", command):
            assert "hunter2" not in command


def test_marathon_refuses_secrets(phalanx: Phalanx, secret: Path) -> None:
    done = phalanx(
        "launch", "marathon", *BACKENDS["marathon"], "--env-from-secret", "A=b", "train.py"
    )
    assert done.returncode == 2
    assert "marathon has no secrets" in done.stderr


def plan(phalanx: Phalanx, backend: str, source: str) -> str:
    secret = ["--env-from-secret", f"TOKEN={source}"]
    done = phalanx("launch", backend, *BACKENDS[backend], *secret, "--dry-run", "train.py")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pods_refer_to_the_secret(phalanx: Phalanx, secret: Path) -> None:
    for backend in ("kubernetes", "kubeflow", "trainjob"):
        for source, key in (("wandb/key", "key"), ("wandb", "TOKEN")):
            reference = {"secretKeyRef": {"name": "wandb", "key": key}}
            text = plan(phalanx, backend, source)
            assert repr({"name": "TOKEN", "valueFrom": reference}) in str(
                list(yaml.safe_load_all(text))
            )


def test_swarm_mounts_the_secret_and_exports_it(phalanx: Phalanx, secret: Path) -> None:
    stack = yaml.safe_load(plan(phalanx, "swarm", "wandb"))
    assert stack["secrets"] == {"wandb": {"external": True}}
    task = stack["services"]["chief-0"]
    assert task["secrets"] == [{"source": "wandb", "target": "wandb"}]
    script = task["command"][2].replace("$$", "$").replace("/run/secrets/wandb", str(secret))
    shown = subprocess.run(
        ["sh", "-c", script, "sh", "printenv", "TOKEN"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == SECRET + "\n"


def test_compose_and_docker_take_the_value_from_their_environment(
    phalanx: Phalanx, secret: Path
) -> None:
    file = yaml.safe_load(plan(phalanx, "compose", "token"))
    assert file["services"]["chief-0"]["environment"]["TOKEN"] is None
    text = plan(phalanx, "docker", "token")
    assert f'TOKEN="$(cat {secret})" \\\n' in text
    assert "--env=TOKEN " in text


def test_slurm_script_reads_the_file_on_the_node(
    phalanx: Phalanx, secret: Path, environ: dict[str, str]
) -> None:
    script = plan(phalanx, "slurm", "token")
    function = script[script.index("with_environment() (") :].partition("\n)\n")[0] + "\n)\n"
    shown = subprocess.run(
        ["bash", "-c", function + "with_environment printenv TOKEN"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == SECRET + "\n"


@pytest.mark.skipif(sshd.why_not() is not None, reason=str(sshd.why_not()))
def test_values_reach_another_host_unseen(launching: Phalanx, secret: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "print(ascii([os.environ['TOKEN'], os.environ['PASSWORD']]))\n"
        "while os.path.exists('hold'): time.sleep(0.1)\n"
    )
    (tmp_path / "hold").touch()
    given = ["--env-from-secret", "TOKEN=token", "--env", "PASSWORD=hunter\n2'"]
    with sshd.running(tmp_path) as server:
        done = launching("launch", "ssh", *server.options(), *given, "train.py")
        assert done.returncode == 0, done.stderr
        expected = ascii([SECRET, "hunter\n2'"])
        wait_for(lambda: expected in launching("logs", "train").stdout)
        lines = subprocess.run(["ps", "-Aww", "-o", "args"], capture_output=True, check=True).stdout
        assert b"train.py" in lines
        assert b"hunter" not in lines
        assert b"s3cret" not in lines
        (tmp_path / "hold").unlink()
        assert launching("logs", "-f", "train").returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(slurm.why_not() is not None, reason=str(slurm.why_not()))
def test_slurm_task_gets_the_secret(launching: Phalanx, secret: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print(ascii(os.environ['TOKEN']))")
    given = ["--env-from-secret", "TOKEN=token", "--env", "A=1"]
    with slurm.three_nodes(tmp_path) as variables:
        done = launching("launch", "slurm", *given, "--follow", "train.py", **variables)
    assert done.returncode == 0, done.stderr
    assert f"chief-0  | {SECRET!a}\n" in done.stdout.replace("chief-0 |", "chief-0  |")


def test_pod_gets_the_key_of_a_secret(launching: Phalanx, secret: Path, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    (tmp_path / "train.py").write_text("import os; print(ascii(os.environ['TOKEN']))")
    with kubernetes.running(tmp_path, tmp_path) as (cluster, variables):
        data = {"key": base64.b64encode(SECRET.encode()).decode()}
        cluster.objects["Secret", "wandb"] = {"metadata": {"name": "wandb"}, "data": data}
        source = ["--image", "a", "--env-from-secret", "TOKEN=wandb/key"]
        done = launching("launch", "kubernetes", *source, "--follow", "train.py", **variables)
    assert done.returncode == 0, done.stderr
    assert f"chief-0 | {SECRET!a}\n" in done.stdout


def test_missing_key_of_a_secret_is_reported(launching: Phalanx, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    state = {"reason": "CreateContainerConfigError", "message": 'secret "wandb" not found'}
    with kubernetes.running(tmp_path, tmp_path) as (cluster, variables):
        cluster.objects["Secret", "wandb"] = {"data": {"key": ""}}
        cluster.waiting = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": state}}]}
        source = ["--image", "a", "--env-from-secret", "TOKEN=wandb/key"]
        done = launching("launch", "kubernetes", *source, "train.py", **variables)
    assert done.returncode == 2
    assert 'secret "wandb" not found' in done.stderr
