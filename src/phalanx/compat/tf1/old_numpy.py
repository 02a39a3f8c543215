"""NumPy as programs of 2017 know it: with the aliases that NumPy 1.24 and 2.0 removed."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

ALIASES: Mapping[str, Any] = {
    "Inf": np.inf,
    "NINF": -np.inf,
    "NaN": np.nan,
    "PINF": np.inf,
    "alltrue": np.all,
    "bool8": np.bool_,
    "complex": complex,
    "complex_": np.complex128,
    "cumproduct": np.cumprod,
    "float": float,
    "float_": np.float64,
    "in1d": np.isin,
    "infty": np.inf,
    "int": int,
    "int0": np.intp,
    "long": int,
    "mat": np.asmatrix,
    "object": object,
    "product": np.prod,
    "round_": np.round,
    "row_stack": np.vstack,
    "sometrue": np.any,
    "str": str,
    "string_": np.bytes_,
    "trapz": np.trapezoid,
    "unicode": str,
    "unicode_": np.str_,
}


class OldNumPy(ModuleType):
    """Stands for `numpy` in a program: everything that NumPy has, and the aliases that it had."""

    def __init__(self) -> None:
        super().__init__("numpy", np.__doc__)
        self.__dict__.update(
            __path__=np.__path__, __file__=np.__file__, __spec__=np.__spec__, __package__="numpy"
        )

    def __getattr__(self, name: str) -> Any:
        # `long` came back in NumPy 2 with another meaning; the program means the old one.
        found = ALIASES[name] if name in ALIASES else getattr(np, name)
        self.__dict__[name] = found
        return found

    def __dir__(self) -> list[str]:
        return sorted({*dir(np), *ALIASES})
