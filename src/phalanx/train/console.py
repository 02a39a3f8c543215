"""What a person at the terminal sees of a run: its log, and its errors in plain words."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from phalanx.errors import PhalanxError
from phalanx.train.runtime.background_calls import wait_for_background_calls

LOG = logging.getLogger("phalanx")


def show_log() -> None:
    """Log to standard error, unless the program has set up its own logging."""
    if logging.getLogger().handlers or LOG.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def explain_errors() -> None:
    """An error of ours that nobody catches is one message and its exit code, not a trace."""
    before: Callable[..., Any] = sys.excepthook
    if getattr(before, "explains_phalanx", False):
        return

    def explain(kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, PhalanxError):
            print(f"phalanx: {error}", file=sys.stderr)
        else:
            before(kind, error, trace)
        code = getattr(error, "exit_code", 130 if kind is KeyboardInterrupt else 1)
        if not wait_for_background_calls():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if isinstance(error, PhalanxError):
            sys.exit(code)

    explain.explains_phalanx = True  # type: ignore[attr-defined]
    sys.excepthook = explain
