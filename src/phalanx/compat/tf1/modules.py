"""Modules that stand for those of TensorFlow 1: names of this package, and names that are missing.

A program may import anything of `tensorflow.contrib`; what is not provided fails when it is used,
with an error that names it.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

from phalanx.compat.tf1.missing import describe_missing
from phalanx.errors import ConfigurationError

_PACKAGE = "phalanx.compat.tf1"

HOMES = {
    "tensorflow.contrib": f"{_PACKAGE}.contrib",
    "tensorflow.contrib.slim.metrics": f"{_PACKAGE}.contrib.metrics",
    "tensorflow.contrib.slim.utils": f"{_PACKAGE}.contrib.layers.utils",
    "tensorflow.estimator": f"{_PACKAGE}.estimator",
    "tensorflow.examples": f"{_PACKAGE}.examples",
    "tensorflow.python.estimator": f"{_PACKAGE}.estimator",
    "tensorflow_estimator": f"{_PACKAGE}.estimator",
    "tensorflow_estimator.python.estimator": f"{_PACKAGE}.estimator",
    "tensorlayer": f"{_PACKAGE}.distributed",
}


def is_provided(name: str) -> bool:
    """Whether a module of TensorFlow 1 is one that this package stands for."""
    return any(name == root or name.startswith(f"{root}.") for root in HOMES)


def make_module(name: str, resolve: Callable[[str], object]) -> "Tf1Module":
    """Return the module that stands for a module of TensorFlow 1.

    Args:
        name: Its full name, as in `tensorflow.contrib.learn.python.learn`.
        resolve: Imports another module of TensorFlow 1 by its full name.
    """
    return Tf1Module(name, _find_homes(name), resolve)


def _find_homes(name: str) -> list[ModuleType]:
    """Return the modules of this package that provide the names of a TensorFlow 1 module.

    The private modules below a package have its public names too: contrib/learn/python/learn/
    experiment.py has those of contrib.learn. So the homes of a module are its own, if there is one,
    and those of the packages above it, innermost first.
    """
    root = max((each for each in HOMES if f"{name}.".startswith(f"{each}.")), key=len)
    homes = [import_module(HOMES[root])]
    for part in name.removeprefix(root).strip(".").split("."):
        home = f"{homes[0].__name__}.{part}"
        if part and hasattr(homes[0], "__path__") and find_spec(home) is not None:
            homes.insert(0, import_module(home))
    return homes


def _gives(home: ModuleType, name: str) -> bool:
    """Whether a home gives programs a module of TensorFlow, such as `nest`, and not its own."""
    is_own = getattr(home, name).__name__.startswith(_PACKAGE)
    return name in getattr(home, "__all__", ()) and not is_own


class Tf1Module(ModuleType):
    """A module or a name of TensorFlow 1, provided or missing.

    Only its use shows whether an unknown name is a module or a function: its attributes are looked
    up in the homes; calling it says that it is missing.
    """

    def __init__(
        self, name: str, homes: list[ModuleType], resolve: Callable[[str], object]
    ) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__dict__["_homes"] = homes
        self.__dict__["_resolve"] = resolve

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        for home in self.__dict__["_homes"]:
            found = getattr(home, name, None)
            if found is not None and (not isinstance(found, ModuleType) or _gives(home, name)):
                return found
        found = self.__dict__["_resolve"](f"{self.__name__}.{name}")
        self.__dict__[name] = found
        return found

    def __dir__(self) -> list[str]:
        return sorted({name for home in self.__dict__["_homes"] for name in dir(home)})

    def _refuse(self, *args: object, **more: object) -> NoReturn:
        raise ConfigurationError(describe_missing(self.__name__))

    __call__ = __mro_entries__ = __iter__ = __getitem__ = __bool__ = __float__ = __int__ = _refuse

    def __instancecheck__(self, value: object) -> bool:
        return False
