"""Finds the experiment in a program without training it."""

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig
from phalanx.train.experiment import Experiment
from phalanx.train.runner import handle_runs


@dataclass(frozen=True)
class LoadedProgram:
    """The experiment that a program trains, and its config."""

    experiment: Experiment
    config: RunConfig


class _RunCalled(BaseException):
    """Ends a program at its call of `phalanx.run`; no `except Exception` catches it."""

    def __init__(self, program: LoadedProgram) -> None:
        super().__init__()
        self.program = program


def load_program(path: str, arguments: Sequence[str] = ()) -> LoadedProgram:
    """Return the experiment that a program passes to `phalanx.run`, or else the one it defines.

    The program runs as its user would run it, up to that call.
    """
    if not Path(path).is_file():
        raise ConfigurationError(f"there is no program {path}")
    with _command_line(path, arguments), handle_runs(_end_program):
        try:
            names = runpy.run_path(path, run_name="__main__")
        except _RunCalled as call:
            return call.program
        except SystemExit as end:
            if end.code in (None, 0):
                raise ConfigurationError(f"{path} ended before it called phalanx.run") from None
            raise ConfigurationError(
                f"{path} ended with {end.code!r} before it called phalanx.run: give it the flags "
                "it needs, after -- or (to predict) in --program-flags"
            ) from None
    return LoadedProgram(_find_experiment(names, path), RunConfig())


def _end_program(experiment: Experiment, config: RunConfig | None) -> NoReturn:
    raise _RunCalled(LoadedProgram(experiment, config or RunConfig.parse()))


def _find_experiment(names: dict[str, object], path: str) -> Experiment:
    """Return the only experiment of a module: an object, or a class without arguments."""
    objects = [value for value in names.values() if isinstance(value, Experiment)]
    classes = [
        value
        for value in names.values()
        if isinstance(value, type)
        and issubclass(value, Experiment)
        and value.__module__ == "__main__"
    ]
    found = objects or classes
    if len(found) != 1:
        count = "no experiment" if not found else f"{len(found)} experiments"
        raise ConfigurationError(
            f"{path} defines {count} and does not call phalanx.run: let it call "
            "phalanx.run(experiment, config), or define one Experiment"
        )
    if objects:
        return objects[0]
    try:
        return classes[0]()
    except TypeError as error:
        raise ConfigurationError(
            f"{classes[0].__name__} of {path} cannot be created: {error}. Create one in the program"
        ) from None


@contextmanager
def _command_line(path: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set the arguments of the program, and let it import modules from its own directory."""
    argv, folder = sys.argv, str(Path(path).resolve().parent)
    sys.argv = [path, *arguments]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path.remove(folder)
