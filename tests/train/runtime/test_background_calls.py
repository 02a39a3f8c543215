"""Calls that do not return neither block the exit of a program nor change its exit code."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

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


def test_calls_one_after_the_other_use_one_thread() -> None:
    assert wait_for_background_calls(60)
    used = set()
    for _ in range(20):
        used.add(call_in_background(threading.get_ident).result(60))
        assert wait_for_background_calls(60)
    assert len(used) == 1


def test_calls_at_the_same_time_do_not_wait_for_each_other() -> None:
    barrier = threading.Barrier(8)
    calls = [call_in_background(barrier.wait, 60) for _ in range(8)]
    assert sorted(call.result(60) for call in calls) == list(range(8))


def test_an_idle_thread_does_not_keep_the_arguments_of_its_call() -> None:
    class Argument:
        pass

    argument = Argument()
    reference = weakref.ref(argument)
    call_in_background(id, argument).result(60)
    assert wait_for_background_calls(60)
    del argument
    gc.collect()
    assert reference() is None


def test_a_forked_process_starts_threads_of_its_own() -> None:
    call_in_background(sum, [1, 2]).result(60)
    assert wait_for_background_calls(60)
    child = os.fork()
    if not child:
        os._exit(call_in_background(sum, [3, 4]).result(60))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
