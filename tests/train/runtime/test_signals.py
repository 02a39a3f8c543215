"""SIGTERM as a stop request."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

from phalanx.train.runtime.signals import catch_sigterm


def test_sigterm_sets_the_request_and_the_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with catch_sigterm() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_nothing_is_caught() -> None:
    def enter() -> bool:
        with catch_sigterm() as stop:
            return stop()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() is False
