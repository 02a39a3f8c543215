"""The log and the error messages on the terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import logging
from phalanx.errors import ConfigurationError
from phalanx.train.console import explain_errors, show_log
{}
explain_errors()
explain_errors()
show_log()
logging.getLogger("phalanx").info("started")
raise {}
"""


@pytest.mark.parametrize(
    ("error", "code", "ends"),
    [
        ("ConfigurationError('model_dir is not set')", 2, "phalanx: model_dir is not set\n"),
        ("ValueError('wrong')", 1, "ValueError: wrong\n"),
    ],
)
def test_own_errors_are_one_message_and_others_keep_their_traceback(
    error: str, code: int, ends: str
) -> None:
    ended = run_program("", error)
    assert ended.returncode == code
    assert ended.stderr.endswith(ends)
    assert ("Traceback" in ended.stderr) == (code == 1)
    assert ended.stderr.count(" started\n") == 1


def test_logging_of_the_program_is_left_alone() -> None:
    ended = run_program("logging.basicConfig(level='INFO', format='mine %(message)s')", "OSError")
    assert "mine started\n" in ended.stderr
    assert " started\n" not in ended.stderr.replace("mine started\n", "")


def run_program(setup: str, error: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(setup, error)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
