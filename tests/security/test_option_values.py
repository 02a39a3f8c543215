"""Values of options end in file names, scripts and manifests: as data, or not at all."""

from pathlib import Path

import pytest
from tests.cli.in_process import invoke

from phalanx.errors import JobError
from phalanx.launch.backends.slurm.plan import SlurmOptions, plan_script
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.records import write_examples

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8) + (1).to_bytes(4, "big") * 2 + bytes(9)
LINE = "a\ntouch /tmp/injected"


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")


COMMANDS = {
    "run": ["run", "--dry-run"],
    "local": ["launch", "slurm", "--dry-run"],
    "ssh": ["launch", "ssh", "--dry-run", "--host=a"],
    "docker": ["launch", "docker", "--dry-run", "--image=i"],
    "compose": ["launch", "compose", "--dry-run", "--image=i"],
    "swarm": ["launch", "swarm", "--dry-run", "--image=i"],
    "kubernetes": ["launch", "kubernetes", "--dry-run", "--image=i"],
    "kubeflow": ["launch", "kubeflow", "--dry-run", "--image=i"],
    "marathon": ["launch", "marathon", "--dry-run", "--image=i", "--url=http://m"],
    "ray": ["launch", "ray", "--dry-run"],
}


def list_text_options(command: list[str]) -> list[str]:
    """The options of a command that take a text, except the values of variables."""
    import click

    from phalanx.cli import cli

    context, found = click.Context(cli), cli
    for word in command[: 1 if command[0] == "run" else 2]:
        found = found.get_command(context, word)  # type: ignore[assignment]
    return [
        each.opts[0]
        for each in found.params
        if isinstance(each, click.Option)
        and not each.is_flag
        and not each.hidden
        and each.name not in ("env", "file")
        and not isinstance(each.type, click.IntRange | click.Choice)
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_takes_a_line_break(name: str) -> None:
    command = COMMANDS[name]
    options = list_text_options(command)
    assert "--model-dir" in options
    for option in options:
        for bad in (LINE, "a\0b", "a\x1b[31mb", "a=b\n:c"):
            done = invoke(*command, f"{option}={bad}", "train.py")
            assert done.returncode == 2, (option, bad, done)
            assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["image", "train.py", "--dry-run", f"--base=python:3\nRUN {LINE}"],
        ["image", "train.py", "--dry-run", "--base=--platform=x python"],
        ["image", "train.py", "--build=--push"],
        ["launch", "docker", "--dry-run", "--image=--privileged", "train.py"],
        ["launch", "docker", "--dry-run", "--image=a b", "train.py"],
        ["launch", "kubernetes", "--dry-run", "--image=i", "--namespace=../secrets", "train.py"],
        ["launch", "kubernetes", "--dry-run", "--image=i", f"--label=a={'x' * 300}", "train.py"],
        ["launch", "kubernetes", "--dry-run", "--image=i", f"--label={'x' * 300}=a", "train.py"],
        ["launch", "kubernetes", "--dry-run", "--image=i", "--node-selector=a=b c", "train.py"],
        ["launch", "kubeflow", "--dry-run", "--image=i", "--label=a=-", "train.py"],
        ["launch", "ssh", "--dry-run", "--host=-oProxyCommand=id", "train.py"],
        ["run", "--dry-run", "--model-dir=--workers", "train.py"],
        ["run", "--dry-run", f"--log-dir={'x' * 300}", "train.py"],
        ["run", "--dry-run", "--env=ä=b", "train.py"],
        ["launch", "docker", "--dry-run", "--image=i", f"--name={'x' * 300}", "train.py"],
        ["manifest", "kubernetes", "gs://a/b", "--namespace=A/b"],
        ["manifest", "kubernetes", "gs://a/b", f"--label=a={'x' * 300}"],
        ["manifest", "compose", "gs://a/b\nc"],
        ["manifest", "compose", "gs://a/b", "--image=a\nb"],
        ["status", "../../../etc/passwd"],
        ["status", "x" * 300],
        ["cancel", "--forget", "../x"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60].encode("unicode_escape").decode(),
)
def test_values_that_are_no_names_are_wrong_usage(arguments: list[str]) -> None:
    done = invoke(*arguments)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr


def test_files_to_copy_are_not_options_of_tar() -> None:
    bad = "--checkpoint-action=exec=id"
    Path(bad).write_text("")
    done = invoke("launch", "ssh", "--dry-run", "--host=a", f"--copy={bad}", "train.py")
    assert done.returncode == 2 or f"-- {bad}" in done.stdout


def test_values_of_variables_may_have_several_lines() -> None:
    for name in ("run", "local", "docker", "kubernetes"):
        done = invoke(*COMMANDS[name], "--env=KEY=one\ntwo", "train.py")
        assert done.returncode == 0, done.stderr
        done = invoke(*COMMANDS[name], "--env=KEY=one\0two", "train.py")
        assert done.returncode == 2


def test_a_batch_script_has_no_line_of_a_value() -> None:
    job = Job("a", Program(ProgramKind.FILE, "train.py"))
    for options in (
        SlurmOptions("/home", LINE, "python"),
        SlurmOptions(LINE, "/logs", "python"),
        SlurmOptions("/home", "/logs", "python", sbatch_options=(f"--qos={LINE}",)),
    ):
        with pytest.raises(JobError, match="line"):
            plan_script(job, options)
    with pytest.raises(JobError, match="model directory"):
        plan_script(
            Job("a", Program(ProgramKind.FILE, "train.py"), model_dir=LINE),
            SlurmOptions("/home", "/logs", "python"),
        )


def test_slurm_replaces_nothing_in_the_log_directory() -> None:
    job = Job("a", Program(ProgramKind.FILE, "train.py"))
    script = plan_script(job, SlurmOptions("/home", "/logs/%u", "python")).script
    assert "#SBATCH --output=/logs/%%u/batch.log" in script.replace("'", "")
    assert "\nlog_dir=/logs/%u\n" in script
    with pytest.raises(JobError, match="backslash"):
        plan_script(job, SlurmOptions("/home", "/logs\\x", "python"))


def test_labels_of_any_length_become_directories(tmp_path: Path) -> None:
    labels = [b"x" * 300, b"x" * 299 + b"y", "ä".encode() * 200, b"a\nb/../c", b"..", b"-"]
    write_examples(tmp_path / "a.tfrecord", {"image": [PNG] * len(labels), "label_name": labels})
    done = invoke("records", "convert", tmp_path / "a.tfrecord", "--out", f"{tmp_path}/out/")
    assert done.returncode == 0, done.stderr
    directories = sorted((tmp_path / "out").iterdir())
    assert len(directories) == len(labels)
    assert all(len(list(each.iterdir())) == 1 for each in directories)
