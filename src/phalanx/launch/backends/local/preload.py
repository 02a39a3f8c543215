"""Finds the modules that every task of a program will import first, without running it."""

import ast
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from phalanx.launch.job import Program, ProgramKind

TENSORFLOW = ("tensorflow", "keras")
# A program may use the first of these before it sets its environment for TensorFlow.
PHALANX = ("phalanx.cluster.detect", "phalanx.train.config", *TENSORFLOW, "phalanx.train.runner")
_NAMES = frozenset({*TENSORFLOW, "tf_keras"})
_MAX_FILES = 200
_MAX_BYTES = 1 << 20


def find_preload(program: Program) -> tuple[str, ...]:
    """Return TensorFlow and Keras if the program imports one of them, before it does anything else.

    With them comes what `phalanx.run` needs, if the program imports Phalanx. Imports inside of
    functions do not count: they may never be executed, or late.
    """
    if program.kind is ProgramKind.COMMAND:
        return ()
    if program.kind is ProgramKind.MODULE:
        root, path = Path.cwd(), _find_module(program.target)
    else:
        path = Path(program.target).resolve()
        path = path / "__main__.py" if path.is_dir() else path
        root = path.parent
    imported = _find_imports(path, root) if path is not None else set()
    if not imported & _NAMES:
        return ()
    if program.tf1:
        return ("tensorflow", "tf_keras")
    return PHALANX if "phalanx" in imported else TENSORFLOW


def _find_module(name: str) -> Path | None:
    paths: list[str] | None = None
    origin = None
    for part in [*name.split("."), "__main__"]:
        spec = PathFinder.find_spec(part, [str(Path.cwd())] if paths is None else paths)
        if spec is None:
            break
        origin = spec.origin
        paths = list(spec.submodule_search_locations or ())
        if not paths:
            break
    return Path(origin).absolute() if origin else None


def _find_imports(path: Path, root: Path) -> set[str]:
    """Return the packages that a file and the modules beside it import."""
    imported = set[str]()
    waiting, seen = [path], {path}
    while waiting and len(seen) < _MAX_FILES:
        importing = waiting.pop()
        for level, name in _list_imports(importing):
            if level == 0:
                imported.add(name.partition(".")[0])
            start = root if level == 0 else importing.parents[level - 1]
            base = start.joinpath(*name.split("."))
            found = {file for file in (Path(f"{base}.py"), base / "__init__.py") if file.is_file()}
            waiting += found - seen
            seen |= found
    return imported


def _list_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the level and the name of each module that is imported when a file is."""
    try:
        if path.suffix != ".py" or path.stat().st_size > _MAX_BYTES:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for statement in _list_statements(tree.body):
        match statement:
            case ast.Import(names):
                yield from ((0, each.name) for each in names)
            case ast.ImportFrom(module, names, level):
                yield level or 0, module or ""
                prefix = f"{module}." if module else ""
                yield from ((level or 0, prefix + each.name) for each in names)


def _list_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those inside of `if`, `try` and `with`."""
    for statement in body:
        yield statement
        match statement:
            case ast.If(_, inside, others):
                yield from _list_statements([*inside, *others])
            case ast.Try(inside, handlers, others, final):
                caught = [each for handler in handlers for each in handler.body]
                yield from _list_statements([*inside, *caught, *others, *final])
            case ast.With(_, inside):
                yield from _list_statements(inside)
