"""The log and the error messages of a run on the terminal."""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from typing import Any

from phalanx.errors import PhalanxError
from phalanx.printable import make_printable
from phalanx.train.runtime.background_calls import wait_for_background_calls

LOG = logging.getLogger("phalanx")


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return make_printable(super().format(record))


def show_log() -> None:
    """Log to standard error, unless the program has set up its own logging."""
    if logging.getLogger().handlers or LOG.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def explain_errors() -> None:
    """Print one message instead of a traceback for an uncaught `PhalanxError`.

    The launcher can also ask this process for the stacks of its threads, with SIGUSR2.
    """
    with contextlib.suppress(AttributeError, ValueError, OSError, RuntimeError):
        if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            faulthandler.register(signal.SIGUSR2, all_threads=True)
    before = sys.excepthook
    if getattr(before, "explains_phalanx", False):
        return

    def explain(kind: type[BaseException], error: BaseException, *trace: Any) -> None:
        if isinstance(error, PhalanxError):
            print(f"phalanx: {make_printable(str(error))}", file=sys.stderr)
        else:
            before(kind, error, *trace)
        code = getattr(error, "exit_code", 130 if kind is KeyboardInterrupt else 1)
        # A background call that does not return would keep the interpreter from exiting.
        if not wait_for_background_calls():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        if isinstance(error, PhalanxError):
            sys.exit(code)

    explain.explains_phalanx = True  # type: ignore[attr-defined]
    sys.excepthook = explain
