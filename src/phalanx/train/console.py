"""What a person at the terminal sees of a run: its log, and its errors in plain words."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from phalanx.errors import PhalanxError

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
            sys.exit(error.exit_code)
        before(kind, error, trace)

    explain.explains_phalanx = True  # type: ignore[attr-defined]
    sys.excepthook = explain
