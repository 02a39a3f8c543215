"""Joins the cluster of a job before a program makes its first tensor, if the program calls `fit`.

`phalanx.fit` is called with a model, so TensorFlow has made tensors by then, and a process that
has any cannot join a cluster. So `import phalanx` looks into the program for such a call, and then
lets TensorFlow join just before it initializes itself. Where the call is not found, `fit` starts
the program again, once, with a variable that has the same effect.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

VARIABLE = "PHALANX_JOIN_SECONDS"
"""How long to wait for the other tasks; set only in a program that was started again."""

directory = str(Path.cwd())
"""The working directory of the program when it imported this package."""

Join = Callable[[float | None], None]

_CALL = re.compile(
    r"\bphalanx\.(fit|evaluate|predict)\b"
    r"|from phalanx import [^\n]*\b(fit|evaluate|predict)\b"
    r"|\bimport phalanx as (?P<name>\w+)[\s\S]*\b(?P=name)\.(fit|evaluate|predict)\b"
)

_CONTEXT = "tensorflow.python.eager.context"

_requested: list[float] = []
_undo: list[Callable[[], None]] = []


def was_requested() -> bool:
    """Whether this program was started again to join its cluster."""
    return bool(_requested)


def install(join: Join) -> None:
    """Call `join` before TensorFlow initializes itself, if the program is found to call `fit`."""
    global directory  # noqa: PLW0603
    directory = str(Path.cwd())
    text = os.environ.pop(VARIABLE, None)
    seconds = None if text is None else float(text)
    if seconds is not None:
        _requested.append(seconds)
    elif _is_child() or not any(map(_calls_fit, _programs())):
        return
    # A program that was forked has its modules, but must not import TensorFlow yet.
    if (context := sys.modules.get(_CONTEXT)) is not None:
        _join_before_start(context, join, seconds)
    else:
        sys.meta_path.insert(0, _TensorFlowFinder(join, seconds))


def cancel() -> None:
    """Do not join any more: the process does so now, or is not to join."""
    while _undo:
        _undo.pop()()


def _is_child() -> bool:
    """Whether `multiprocessing` has started this process; if so, it has imported itself."""
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def _programs() -> Iterator[Path]:
    """Return the program, and the file that has imported this package."""
    files = [getattr(sys.modules.get("__main__"), "__file__", None)]
    frame: FrameType | None = sys._getframe()
    package = str(Path(__file__).parent)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((package, "<")):
            files.append(name)
            break
        frame = frame.f_back
    return (Path(file) for file in files if file is not None)


def _calls_fit(path: Path) -> bool:
    try:
        return _CALL.search(path.read_text(encoding="utf-8")) is not None
    except (OSError, ValueError):
        return False


def _join_before_start(context: Any, join: Join, seconds: float | None) -> None:
    """Let the context of TensorFlow join when it is about to be initialized."""
    kind = context.Context
    initialize = kind.ensure_initialized

    def undo() -> None:
        kind.ensure_initialized = initialize

    def join_first(self: Any) -> None:
        cancel()
        # The program may connect to its cluster by itself, or be one of TensorFlow 1.
        is_own = self.coordination_service is not None or not context.executing_eagerly()
        if not self._initialized and not is_own:
            join(seconds)
        initialize(self)

    kind.ensure_initialized = join_first
    _undo.append(undo)


class _TensorFlowFinder:
    """Finds TensorFlow as usual, and prepares it when its import is complete."""

    def __init__(self, join: Join, seconds: float | None) -> None:
        self._join = join
        self._seconds = seconds

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_prepare(module: ModuleType) -> None:
            execute(module)
            _join_before_start(importlib.import_module(_CONTEXT), self._join, self._seconds)

        spec.loader.exec_module = execute_and_prepare  # type: ignore[method-assign]
        return spec
