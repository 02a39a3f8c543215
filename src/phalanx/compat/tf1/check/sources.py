"""Which names the installed TensorFlow and this package have, read from their files.

Nothing is imported: TensorFlow takes seconds to load, and a checked program needs none of it.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from phalanx.compat.tf1.missing import TOSTRING
from phalanx.compat.tf1.modules import HOMES
from phalanx.compat.tf1.moved import MOVED
from phalanx.errors import ConfigurationError

_LEGACY = "api/_v1/keras/__internal__/legacy"


@dataclass(frozen=True)
class Resolved:
    """The part of a name up to a function, class or constant, and whether it exists."""

    name: str
    exists: bool


@dataclass(frozen=True)
class Sources:
    """The folders of the installed packages."""

    tensorflow: Path
    tf_keras: Path
    phalanx: Path

    @classmethod
    def find(cls) -> "Sources":
        """Find the installed packages.

        Raises:
            ConfigurationError: TensorFlow or tf-keras is not installed.
        """
        folders = []
        for package in ("tensorflow", "tf_keras", "phalanx"):
            spec = find_spec(package)
            if spec is None or spec.origin is None:
                raise ConfigurationError(
                    f"{package} is not installed, so that its names are unknown: "
                    "pip install 'phalanx[tf1]'"
                )
            folders.append(Path(spec.origin).parent)
        return cls(*folders)

    def resolve(self, name: str) -> Resolved:
        """Follow a full name of TensorFlow 1 from module to module."""
        if name == TOSTRING:
            return Resolved(name, _has_tostring())
        # TensorFlow sets this attribute when it is imported.
        name = name.replace("tensorflow.app.flags", "tensorflow.flags", 1)
        root = max(
            (each for each in HOMES if f"{name}.".startswith(f"{each}.")), key=len, default=""
        )
        if root:
            return self._resolve_own(name, root)
        for each in MOVED:
            if f"{name}.".startswith(f"{each}."):
                return Resolved(each, True)
        if name.startswith(("tensorflow.python.", "tensorflow.core.")):
            return _follow(name, "tensorflow", self.tensorflow)
        for package, folder in (
            ("tensorflow.keras", self.tf_keras / "api/_v1/keras"),
            ("tensorflow.layers", self.tf_keras / _LEGACY / "layers"),
            ("tensorflow.nn.rnn_cell", self.tf_keras / _LEGACY / "rnn_cell"),
            ("tensorflow", self.tensorflow / "_api/v2/compat/v1"),
        ):
            if f"{name}.".startswith(f"{package}."):
                return _follow(name, package, folder)
        return Resolved(name, False)

    def is_in_tensorflow_2(self, name: str) -> bool:
        """Whether TensorFlow 2 has the same name."""
        first, _, rest = name.removeprefix("tensorflow.").partition(".")
        if not rest:
            return first in _read_names(self.tensorflow / "__init__.py")
        folder = self.tensorflow / "_api/v2" / first
        return folder.is_dir() and _follow(name, f"tensorflow.{first}", folder).exists

    def _resolve_own(self, name: str, root: str) -> Resolved:
        """Follow a name as `modules.py` does: private modules have the names of their package."""
        home = self.phalanx.joinpath(*HOMES[root].split(".")[1:])
        homes, reached, exists = [home], root, True
        for part in filter(None, name.removeprefix(root).strip(".").split(".")):
            reached, exists = f"{reached}.{part}", True
            if _is_module(homes[0] / part):
                homes.insert(0, homes[0] / part)
            elif any(part in _read_module(each) for each in homes):
                return Resolved(reached, True)
            else:
                exists = part == "distributed" or part.startswith("__")
        return Resolved(reached, exists)


def _has_tostring() -> bool:
    release = [int(part) for part in version("numpy").split(".")[:2]]
    return release < [2, 3]


def _follow(name: str, package: str, folder: Path) -> Resolved:
    reached = package
    for part in filter(None, name.removeprefix(package).split(".")):
        reached = f"{reached}.{part}"
        if _is_module(folder / part):
            folder = folder / part
        else:
            # Messages of protocol buffers are made when their module is imported.
            is_known = part in _read_module(folder) or folder.name.endswith("_pb2")
            return Resolved(reached, is_known or part.startswith("__"))
    return Resolved(reached, True)


def _is_module(path: Path) -> bool:
    return (
        path.is_dir()
        or path.with_suffix(".py").is_file()
        or any(path.parent.glob(f"{path.name}.*so"))
    )


def _read_module(path: Path) -> frozenset[str]:
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return _read_names(file)


@cache
def _read_names(file: Path) -> frozenset[str]:
    """Return the names that a file defines or imports outside functions and classes."""
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text(errors="replace"))
    names = set(_list_names(tree.body))
    for node in tree.body:
        match node:
            case ast.ImportFrom(module=str(module), names=[ast.alias(name="*")], level=0):
                names |= _read_module(_site_of(file).joinpath(*module.split(".")))
    return frozenset(names)


def _site_of(file: Path) -> Path:
    """Return the folder that holds the package of a file."""
    return next(each for each in file.parents if not (each / "__init__.py").exists())


def _list_names(body: Iterable[ast.stmt]) -> Iterable[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            case ast.Assign():
                for target in node.targets:
                    yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try() | ast.With():
                yield from _list_names(ast.iter_child_nodes(node))  # type: ignore[arg-type]
