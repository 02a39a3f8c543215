"""Types of options that several commands share."""

from __future__ import annotations

from typing import Any

import click


class Seconds(click.ParamType[float]):
    """A time that passes: neither less than `least` nor for ever, nor no number at all."""

    name = "seconds"

    def __init__(self, least: float = 0, unit: str = "seconds") -> None:
        self.least = least
        self.unit = unit

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, if it is one."""
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of {self.unit}", param, ctx)
        # A nan compares false with everything.
        if not self.least <= seconds <= 1e7:
            self.fail(f"{value} is not from {self.least:g} to 10,000,000 {self.unit}", param, ctx)
        return seconds
