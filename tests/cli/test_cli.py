"""The `phalanx` command line as a whole."""

import subprocess
import sys
from collections.abc import Callable

from tests.cli.in_process import invoke

from phalanx import __version__
from phalanx.cli import COMMANDS

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


def test_help_lists_every_command() -> None:
    text = invoke("--help").stdout
    assert [name for name in COMMANDS if f"\n  {name} " not in text] == []


def test_version_is_printed() -> None:
    assert invoke("--version").stdout == f"phalanx, version {__version__}\n"


def test_error_is_one_message_and_its_exit_code(phalanx: Phalanx) -> None:
    done = phalanx("records", "count", "none.tfrecord")
    assert done.returncode == 2
    assert done.stderr.startswith("phalanx: ")
    assert done.stderr.count("\n") == 1


def test_closed_streams_do_not_fail_a_command() -> None:
    command = f"{sys.executable} -m phalanx check >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0


def test_characters_that_stdout_cannot_encode_are_replaced(
    phalanx: Phalanx, tmp_path: object
) -> None:
    done = phalanx("run", "--", "printf", "\u00e9\\n", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "chief-0 | ?" in done.stdout


def test_help_of_groups_shows_whole_summaries() -> None:
    groups = ("launch", "records", "tf-config", "data-service", "tf1", "dataset")
    listed = {name: invoke(name, "--help").stdout.partition("Commands:")[2] for name in groups}
    assert [name for name, text in listed.items() if "..." in text or not text] == []
