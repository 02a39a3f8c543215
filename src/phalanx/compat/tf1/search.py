"""Finds the estimator of a program without training it, for the commands that use trained models.

While a search is active, estimators do not train, evaluate or export: they note what they were
asked for. A program that hands everything to one call, such as `train_and_evaluate`, ends there.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

Evaluate = Callable[[str], Mapping[str, Any]]
Export = Callable[[str, str], Any]


@dataclass
class Found:
    """What a program does with its estimator."""

    estimator: Any = None
    input_fn: Callable[..., Any] | None = None
    """Returns what the model takes."""
    evaluate: Evaluate | None = None
    """Evaluates the checkpoint with this path, as the program does."""
    export: Export | None = None
    """Writes a SavedModel below this directory from the checkpoint with this path."""


class SearchEnded(BaseException):
    """Ends a program whose estimator was found; no `except Exception` catches it."""


_active: Found | None = None


@contextmanager
def searching() -> Iterator[Found]:
    """Search for the estimator of the program that runs in this context."""
    global _active  # noqa: PLW0603
    _active = Found()
    try:
        yield _active
    finally:
        _active = None


def is_active() -> bool:
    """Whether the program of this process only runs for its estimator to be found."""
    return _active is not None


def note(
    estimator: Any,
    input_fn: Callable[..., Any] | None = None,
    evaluate: Evaluate | None = None,
    export: Export | None = None,
) -> None:
    """Note an estimator, and what the program asks of it; the last of each counts."""
    assert _active is not None
    _active.estimator = estimator
    _active.input_fn = input_fn or _active.input_fn
    _active.evaluate = evaluate or _active.evaluate
    _active.export = export or _active.export


def end(
    estimator: Any, input_fn: Callable[..., Any], evaluate: Evaluate, export: Export | None
) -> NoReturn:
    """Note all that there is to know, and end the program."""
    note(estimator, input_fn, evaluate, export)
    raise SearchEnded
