"""Public names that a package loads when they are first used."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

# What to install when one of these packages is missing.
_EXTRAS = {
    "keras": ("TensorFlow", "phalanx[cpu]"),
    "pyspark": ("Spark", "phalanx[spark]"),
    "tensorflow": ("TensorFlow", "phalanx[cpu]"),
}


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package with these names by module.

    A name that is also the last part of its module's name is the module itself.
    """
    locations = {name: module for module, names in modules.items() for name in names}

    # Nothing is cached: `phalanx.run` must follow when `phalanx.train.runner.run` is replaced.
    def load(name: str) -> object:
        if name not in locations:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(locations[name])
        except ModuleNotFoundError as error:
            if error.name not in _EXTRAS:
                raise
            needed, extra = _EXTRAS[error.name]
            raise ImportError(
                f"{package}.{name} needs {needed}, which is not installed: pip install '{extra}'"
            ) from None
        return module if locations[name].endswith(f".{name}") else getattr(module, name)

    def list_names() -> list[str]:
        return sorted({*vars(import_module(package)), *locations})

    return load, list_names, sorted(locations)
