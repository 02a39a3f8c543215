"""What can be written after a flag: sizes, durations, names and values, amounts for each role."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from phalanx.cluster.spec import Role
from phalanx.errors import ConfigurationError

_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_size(text: str) -> int:
    """Bytes.

    >>> parse_size("1.5G")
    1610612736
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        raise ValueError(f"{text!r} is not a size: write 512M or 16G")
    return int(float(match[1]) * _BYTES[match[2].upper()])


def parse_duration(text: str, least: float = 0, most: float = 1e8) -> float:
    """Seconds.

    >>> parse_duration("1h30m"), parse_duration("90")
    (5400.0, 90.0)
    """
    try:
        seconds = float(text)
    except ValueError:
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd]?)", text)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(
                f"{text!r} is not a duration: write 90 or 90s for seconds, 30m, 12h or 1d12h"
            ) from None
    # A nan compares false with everything.
    if not least <= seconds <= most:
        raise ValueError(f"{text} is not from {least:g} to {most:,.0f} seconds")
    return seconds


def parse_cpus(text: str) -> float:
    """Processors, or parts of one."""
    cpus = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0
    if not cpus:
        raise ValueError(f"{text!r} is not a number of processors: write 4 or 0.5")
    return cpus


def parse_gpus(text: str) -> int:
    """GPUs; none may be said, too."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number of GPUs: write 0, 1, 2, …")
    return int(text)


class Parsed(click.ParamType[Any]):
    """The text as one of the functions above reads it."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or click's error for wrong use."""
        if not isinstance(value, str | int | float):
            return value
        try:
            return self._parse(str(value))
        except (ValueError, ConfigurationError) as error:
            self.fail(str(error), param, ctx)


DURATION = Parsed("duration", parse_duration)
SOME_DURATION = Parsed("duration", partial(parse_duration, least=0.001))


def named_value(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


NAMED_VALUE = Parsed("name=value", named_value)


def for_roles(parse: Callable[[str], Any]) -> Callable[[str], dict[Role, Any]]:
    """`AMOUNT` for every role, or `ROLE=AMOUNT` for one."""

    def read(text: str) -> dict[Role, Any]:
        role, equals, amount = text.rpartition("=")
        return {each: parse(amount) for each in ([Role.parse_any(role)] if equals else Role)}

    return read
