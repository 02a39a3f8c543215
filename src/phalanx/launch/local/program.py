"""Is there such a program? Found out without running or importing any of it."""

from __future__ import annotations

import difflib
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.job import Program, ProgramKind


def check_program(program: Program) -> None:
    """Raise a JobError if the program cannot be started from here."""
    checks = {
        ProgramKind.FILE: _check_file,
        ProgramKind.MODULE: _check_module,
        ProgramKind.COMMAND: _check_command,
    }
    checks[program.kind](program.target)


def _check_file(name: str) -> None:
    path = Path(name)
    if path.is_file() and path.suffix in (".py", ".pyc", ".pyz"):
        return
    if (path / "__main__.py").is_file():
        return
    if path.is_file():
        raise JobError(f"{name} is not a Python file: put -- before it to run it as a command")
    if path.is_dir():
        raise JobError(f"{name} is a directory without a __main__.py: name the file to run")
    raise JobError(f"there is no file {name}{_alternatives(path)}")


def _alternatives(path: Path) -> str:
    if shutil.which(path.name) and path.parent == Path():
        return f": put -- before it to run the command {path.name}"
    if not path.parent.is_dir():
        return f" (nor a directory {path.parent})"
    others = [each.name for each in path.parent.glob("*.py")]
    close = difflib.get_close_matches(path.name, others, n=1)
    return f": did you mean {path.parent / close[0]}?" if close else ""


def _check_module(name: str) -> None:
    """Parts are looked up one by one, for to import a package may mean to import TensorFlow."""
    path: list[str] | None = [str(Path.cwd()), *sys.path]
    found = ""
    for part in name.split("."):
        spec = PathFinder.find_spec(part, path) if path is not None and part else None
        if spec is None:
            where = f" in the package {found}" if found else ""
            raise JobError(f"there is no module {name}: {part!r} was not found{where}")
        found = f"{found}.{part}" if found else part
        path = list(spec.submodule_search_locations) if spec.submodule_search_locations else None


def _check_command(name: str) -> None:
    if shutil.which(name) is None:
        raise JobError(f"there is no command {name}: check the name and the PATH")
