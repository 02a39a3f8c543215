"""SIGTERM as a stop request."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

from phalanx.train.runtime.signals import catch_sigterm


def test_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with catch_sigterm() as stop:
        assert not stop()
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_sets_the_request_and_a_second_one_does_not_end_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with catch_sigterm() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop()
            os.kill(os.getpid(), signal.SIGTERM)
        # It still tells the others, and exits with its own code.
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_nothing_is_caught() -> None:
    def enter() -> bool:
        with catch_sigterm() as stop:
            return stop()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() is False
