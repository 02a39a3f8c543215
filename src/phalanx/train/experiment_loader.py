"""Find the experiment in a program, without training it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import ConfigurationError
from phalanx.train import runner
from phalanx.train.config import RunConfig
from phalanx.train.experiment import Experiment


@dataclass(frozen=True)
class Program:
    """What a program would have trained, and how."""

    experiment: Experiment
    config: RunConfig


class _Found(BaseException):
    """Ends the program where it would begin to train; no `except Exception` stops it."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program


def load_program(path: str, arguments: Sequence[str] = ()) -> Program:
    """The experiment that a program gives to `phalanx.run`, or else the one that it defines.

    The program is run as its user runs it, up to that call.
    """
    if not Path(path).is_file():
        raise ConfigurationError(f"there is no program {path}")
    with _arguments(path, arguments), _instead_of_training():
        try:
            names = runpy.run_path(path, run_name="__main__")
        except _Found as found:
            return found.program
        except SystemExit as end:
            if end.code in (None, 0):
                raise ConfigurationError(
                    f"{path} ended by itself before it came to phalanx.run"
                ) from None
            raise ConfigurationError(
                f"{path} ended with {end.code!r} before it came to phalanx.run: give it the flags "
                "it needs, after -- or (to predict) in --program-flags"
            ) from None
    return Program(_pick(names, path), RunConfig())


def _pick(names: dict[str, Any], path: str) -> Experiment:
    """The one experiment among a module's names: an object, or a class that needs no arguments."""
    made = [value for value in names.values() if isinstance(value, Experiment)]
    kinds = [
        value
        for value in names.values()
        if isinstance(value, type)
        and issubclass(value, Experiment)
        and value.__module__ == "__main__"
    ]
    found = made or kinds
    if len(found) != 1:
        count = "no experiment" if not found else f"{len(found)} experiments"
        raise ConfigurationError(
            f"{path} defines {count} and does not come to phalanx.run: let it call "
            "phalanx.run(experiment, config), or define one Experiment"
        )
    if made:
        return made[0]
    try:
        return kinds[0]()
    except TypeError as error:
        raise ConfigurationError(
            f"{kinds[0].__name__} of {path} cannot be made: {error}. Make one in the program"
        ) from None


@contextmanager
def _arguments(path: str, arguments: Sequence[str]) -> Iterator[None]:
    """The program's own command line, and its folder for its imports."""
    argv, folder = sys.argv, str(Path(path).resolve().parent)
    sys.argv = [path, *arguments]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path.remove(folder)


@contextmanager
def _instead_of_training() -> Iterator[None]:
    def find(experiment: Experiment, config: RunConfig | None = None, **_: Any) -> None:
        raise _Found(Program(experiment, config or RunConfig.parse()))

    before = runner.run
    runner.run = find  # type: ignore[assignment]
    try:
        yield
    finally:
        runner.run = before
