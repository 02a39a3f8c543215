"""Checks that a program exists, without running or importing it."""

import difflib
import shutil
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.job import Program, ProgramKind


def check_program(program: Program) -> None:
    checks = {
        ProgramKind.FILE: _check_file,
        ProgramKind.MODULE: _check_module,
        ProgramKind.COMMAND: _check_command,
    }
    checks[program.kind](program.target)


def _check_file(name: str) -> None:
    path = Path(name)
    if _is_file(path) and path.suffix in (".py", ".pyc", ".pyz"):
        return
    if _is_file(path / "__main__.py"):
        return
    if _is_file(path):
        raise JobError(f"{name} is not a Python file: put -- before it to run it as a command")
    if path.is_dir():
        raise JobError(f"{name} is a directory without a __main__.py: name the file to run")
    raise JobError(f"there is no file {name}{_alternatives(path)}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise JobError(f"{path} cannot be a program: {error.strerror}") from None


def _alternatives(path: Path) -> str:
    if shutil.which(path.name) and path.parent == Path():
        return f": put -- before it to run the command {path.name}"
    if not path.parent.is_dir():
        return f" (nor a directory {path.parent})"
    others = [each.name for each in path.parent.glob("*.py")]
    close = difflib.get_close_matches(path.name, others, n=1)
    return f": did you mean {path.parent / close[0]}?" if close else ""


def _check_module(name: str) -> None:
    """Look the parts up one by one, because importing a package may import TensorFlow."""
    first, *rest = name.split(".")
    spec = _find_top_level(first)
    found = first
    for part in rest:
        if spec is not None:
            spec = _find_inside(spec, part)
        if spec is None:
            raise JobError(f"there is no module {name}: {part!r} was not found in {found}")
        found = f"{found}.{part}"
    if spec is None:
        raise JobError(f"there is no module {name}: {first!r} was not found")
    if spec.submodule_search_locations is not None and not _find_inside(spec, "__main__"):
        raise JobError(f"{name} is a package without a __main__: name the module to run")


def _find_top_level(name: str) -> ModuleSpec | None:
    """Look a module up as Python would in this directory, without importing it."""
    try:
        return PathFinder.find_spec(name, [str(Path.cwd())]) or find_spec(name)
    except (ImportError, ValueError):
        return None


def _find_inside(package: ModuleSpec, name: str) -> ModuleSpec | None:
    paths = package.submodule_search_locations
    return None if paths is None else PathFinder.find_spec(name, list(paths))


def _check_command(name: str) -> None:
    if shutil.which(name) is None:
        raise JobError(f"there is no command {name}: check the name and the PATH")
