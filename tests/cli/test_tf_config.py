"""`phalanx tf-config`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

CLASSIC = [
    *("--master", "localhost:2220", "--ps", "localhost:2222", "--ps", "localhost:2221"),
    *("--worker", "localhost:2223", "--worker", "localhost:2224"),
]
CLUSTER = {
    "chief": ["localhost:2220"],
    "worker": ["localhost:2223", "localhost:2224"],
    "ps": ["localhost:2222", "localhost:2221"],
}
GOOD = json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 1}})
BAD = '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 3}}'


def test_make_prints_only_the_json(phalanx: Phalanx) -> None:
    done = phalanx("tf-config", "make", "worker", 0, *CLASSIC)
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout) == {"cluster": CLUSTER, "task": {"type": "worker", "index": 0}}
    assert done.stdout.count("\n") == 1


def test_make_accepts_master_and_every_setting(phalanx: Phalanx) -> None:
    done = phalanx(
        *("tf-config", "make", "master", *CLASSIC),
        *("--model-dir", "gs://b/m", "--environment", "cloud", "--trial", 2),
    )
    assert json.loads(done.stdout) == {
        "cluster": CLUSTER,
        "task": {"type": "chief", "index": 0, "trial": 2},
        "model_dir": "gs://b/m",
        "environment": "cloud",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", "2", *CLASSIC], "2 is out of range"),
        (["boss", "0", *CLASSIC], "'boss' is not one of"),
        (["worker", "0"], "no address was given"),
        (["worker", "0", "--worker", "a"], "'a' has no port"),
        (["ps", "0", "--ps", "a:1"], "ps without worker"),
        (["chief", "--chief", "a:1", "--master", "b:1"], "2 chiefs were given"),
        (["worker", "--worker", "a:1", "--environment", "moon"], "'moon' is not one of"),
    ],
)
def test_make_refuses_an_invalid_cluster(
    phalanx: Phalanx, arguments: list[str], message: str
) -> None:
    done = phalanx("tf-config", "make", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr


def test_lint_reads_the_argument_a_file_stdin_or_the_environment(
    phalanx: Phalanx, tmp_path: Path
) -> None:
    (tmp_path / "good.json").write_text(GOOD)
    assert phalanx("tf-config", "lint", GOOD).stdout == "no problems in the argument\n"
    assert phalanx("tf-config", "lint", "good.json").stdout == "no problems in good.json\n"
    assert phalanx("tf-config", "lint", TF_CONFIG=GOOD).stdout == "no problems in TF_CONFIG\n"
    assert phalanx("tf-config", "lint", "-").returncode == 1  # nothing on standard input


def test_lint_accepts_the_json_of_a_large_cluster(phalanx: Phalanx) -> None:
    workers = [f"host{number}.example.com:2222" for number in range(200)]
    text = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": 7}})
    assert phalanx("tf-config", "lint", text).stdout == "no problems in the argument\n"


def test_lint_lists_every_problem_and_exits_with_1(phalanx: Phalanx) -> None:
    for done in (phalanx("tf-config", "lint", BAD), phalanx("tf-config", "lint", TF_CONFIG=BAD)):
        assert done.returncode == 1
        assert "2 problems" in done.stdout
        assert "cluster.worker[0]: 'a' has no port. Write it as 'a:2222'." in done.stdout
        assert "task.index: 3 is out of range" in done.stdout


def test_lint_exits_with_2_on_wrong_use(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for arguments, message in [
        ([], "TF_CONFIG is not set"),
        (["missing.json"], "cannot read missing.json: No such file or directory"),
        (["."], "cannot read .: Is a directory"),
        (["binary"], "binary is not text"),
        (["--no-such-option"], "No such option"),
    ]:
        done = phalanx("tf-config", "lint", *arguments)
        assert done.returncode == 2
        assert message in done.stderr
