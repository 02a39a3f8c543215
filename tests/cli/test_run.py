"""`phalanx run`: its arguments, its dry run, and wrong use, which exits with 2."""

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0", "x.py"], "'--workers': 0 is not in the range 1<=x<=10000"),
        (["--workers", "-2", "x.py"], "'--workers': -2 is not in the range"),
        (["--ps", "0", "--workers", "1", "x.py"], "'--ps': 0 is not in the range"),
        (["--restarts", "-1", "x.py"], "'--restarts': -1 is not in the range"),
        (["--threads", "0", "x.py"], "'--threads': 0 is not in the range"),
        (["--workers", "two", "x.py"], "'two' is not a valid integer"),
        (["--ps", "2", "x.py"], "2 ps but no worker"),
        (["--no-chief", "x.py"], "nobody trains"),
        ([], "Missing argument 'PROGRAM'"),
        (["--"], "nothing after --"),
        (["trian.py"], "there is no file trian.py: did you mean train.py?"),
        (["nowhere/train.py"], "there is no file nowhere/train.py (nor a directory nowhere)"),
        (["sleep"], "there is no file sleep: put -- before it to run the command sleep"),
        (["notes.txt"], "notes.txt is not a Python file: put -- before it"),
        (["."], "is a directory without a __main__.py"),
        (["-m", "no_such"], "there is no module no_such"),
        (["-m", "phalanx.no_such"], "'no_such' was not found in phalanx"),
        (["-m", "email"], "email is a package without a __main__"),
        (["x" * 300 + ".py"], "cannot be a program: File name too long"),
        (["--", "./noshebang"], "./noshebang cannot be started: it is neither a program nor"),
        (["--", "./badshebang"], "./badshebang cannot be started: its first line (#!) names"),
        (["--model-dir", "", "x.py"], "the model directory is empty"),
        (["--grace", "nan", "x.py"], "nan is not from 0 to 100,000,000 seconds"),
        (["--linger", "inf", "x.py"], "inf is not from 0"),
        (["--grace", "2x", "x.py"], "'2x' is not a duration: write 90 or 90s for seconds, 30m"),
        (["--env", "TF_CONFIG={}", "x.py"], "every task gets one of its own"),
        (["--", "no-such-command"], "there is no command no-such-command"),
        (["x.py", "{rank}"], "unknown placeholder {rank}"),
        (["--log-dir", "notes.txt", "x.py"], "no output can be written to notes.txt: a file"),
        (["--log-dir", "/proc/none", "x.py"], "no output can be written to /proc/none"),
        (["--base-port", "65535", "--workers", "1", "x.py"], "lower --base-port"),
        (["--no-such-option", "x.py"], "No such option"),
    ],
)
def test_wrong_use_is_reported_and_starts_nothing(
    phalanx: Phalanx, tmp_path: Path, arguments: list[str], message: str
) -> None:
    program = tmp_path / "x.py"
    program.write_text("open('started', 'w')")
    (tmp_path / "train.py").touch()
    (tmp_path / "notes.txt").touch()
    for name, text in (("noshebang", "echo hi"), ("badshebang", "#!/no/such/shell\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = phalanx("run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "started").exists()


def test_port_in_use_is_an_error(phalanx: Phalanx) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = phalanx("run", "--base-port", port, "--", "echo", "started")
    assert done.returncode == 2
    assert f"port {port} cannot be used (Address already in use)" in done.stderr
    assert done.stdout == ""


def test_file_module_and_command_get_their_arguments(phalanx: Phalanx, tmp_path: Path) -> None:
    code = "import sys; print(*sys.argv[1:])"
    (tmp_path / "show.py").write_text(code)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/show.py").write_text(code)
    asked = ["--help", "-m", "--", "--workers", "{role}"]
    given = "chief-0 | --help -m -- --workers chief\n"
    assert phalanx("run", "show.py", *asked).stdout == given
    assert phalanx("run", "-m", "package.show", *asked).stdout == given
    assert phalanx("run", "--", "echo", *asked).stdout == given


def test_dry_run_prints_the_plan_and_starts_nothing(phalanx: Phalanx, tmp_path: Path) -> None:
    done = phalanx("run", "--dry-run", "--workers", 1, "--", "touch", "started-{role}")
    assert done.returncode == 0
    assert "# worker-0, output in phalanx-logs/touch-" in done.stdout
    assert done.stdout.endswith("\ntouch started-worker\n")
    assert list(tmp_path.iterdir()) == []


def test_dry_run_prints_environment_and_module(phalanx: Phalanx) -> None:
    shape = ["--workers", 1, "--env", "SEED=7", "--env", "NOTE=a b"]
    for flag in ("-m", "--module"):
        done = phalanx("run", "--dry-run", "--show-secrets", *shape, flag, "json.tool", "{role}")
        assert done.stdout.count("\nSEED=7 ") == 2
        assert done.stdout.count("\nNOTE='a b' ") == 2
        assert done.stdout.endswith(" -m json.tool worker\n")


def test_printed_commands_of_a_dry_run_can_be_run(phalanx: Phalanx, tmp_path: Path) -> None:
    done = phalanx("run", "--dry-run", "--workers", 1, "--", "sh", "-c", "echo $TF_CONFIG > {role}")
    subprocess.run(["sh", "-c", done.stdout], cwd=tmp_path, check=True)
    assert '"type": "worker"' in (tmp_path / "worker").read_text()
    assert '"type": "chief"' in (tmp_path / "chief").read_text()
