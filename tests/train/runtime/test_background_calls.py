"""Calls that do not return neither block the exit of a program nor change its exit code."""

from __future__ import annotations

import subprocess
import sys
import threading

from phalanx.train.runtime.background_calls import call_in_background, wait_for_background_calls

STUCK = """
import threading
from phalanx.errors import DataError
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.console import explain_errors
explain_errors()
call_in_background(threading.Event().wait)
raise {}
"""


def test_a_future_has_the_result_of_the_call() -> None:
    assert call_in_background(sum, [1, 2]).result(60) == 3
    assert wait_for_background_calls(60)


def test_waiting_for_a_stuck_call_times_out() -> None:
    release = threading.Event()
    call = call_in_background(release.wait)
    assert not wait_for_background_calls(0.1)
    release.set()
    assert call.result(60)


def test_a_program_with_a_stuck_call_keeps_its_exit_code() -> None:
    for error, code, said in (
        ("DataError('no data')", 2, "phalanx: no data\n"),
        ("ValueError('wrong')", 1, "ValueError: wrong\n"),
    ):
        command = [sys.executable, "-c", STUCK.format(error)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
        assert ended.returncode == code
        assert ended.stderr.endswith(said)
