"""Checks of the arguments of `fit`, `evaluate` and `predict`, before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import keras

from phalanx.errors import ConfigurationError
from phalanx.train.types import Model


def check_model(model: Model, method: str, compiled: bool = True) -> None:
    """Raise an error for what is no model, or is not compiled as it must be."""
    if not isinstance(model, keras.Model):
        kind = "compiled keras.Model" if compiled else "keras.Model"
        raise ConfigurationError(
            f"the first argument of phalanx.{method} is of type {type(model).__name__}: pass a "
            f"{kind}"
        )
    if not compiled:
        return
    if not model.compiled:
        raise ConfigurationError(
            f"the model {model.name} is not compiled: call model.compile(optimizer, loss) before "
            f"phalanx.{method}"
        )
    if model.run_eagerly:
        raise ConfigurationError(
            f"the model {model.name} was compiled with run_eagerly=True, which phalanx.{method} "
            f"does not support: leave it out, or use model.{method} to debug the model"
        )


def check_numbers(at_least: int = 1, **values: Any) -> None:
    """Raise an error for a value that is no whole number, or too small; None is no value."""
    for name, value in values.items():
        if value is None:
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < at_least:
            raise ConfigurationError(
                f"{name} is {value!r}: it must be a whole number of at least {at_least}"
            )


def check_validation(split: float, frequency: int | Sequence[int]) -> None:
    """Raise an error for a split that leaves nothing, and for a frequency that is none."""
    if not 0 <= split < 1:
        raise ConfigurationError(
            f"validation_split is {split}: it must be a fraction of the examples, at least 0 and "
            "less than 1"
        )
    if isinstance(frequency, Sequence) and not isinstance(frequency, str):
        for epoch in frequency:
            check_numbers(validation_freq=epoch)
    else:
        check_numbers(validation_freq=frequency)


def resolve_verbose(verbose: int | str) -> int:
    """Return 0, 1 or 2 for any value that Keras takes."""
    if verbose == "auto":
        return 1 if sys.stdout.isatty() else 2
    if str(int(verbose) if isinstance(verbose, bool) else verbose) not in ("0", "1", "2"):
        raise ConfigurationError(f'verbose is {verbose!r}: it must be "auto", 0, 1 or 2')
    return int(verbose)
