"""Options of the kinds that many commands have: times, counts and ports."""

from __future__ import annotations

from collections.abc import Callable

import click

from phalanx.cli.values import DURATION

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def time_option(
    name: str, text: str, default: str | None = None, kind: click.ParamType[float] = DURATION
) -> Decorator:
    """Return an option such as `--timeout 30s`."""
    return click.option(
        name, type=kind, default=default, show_default=True, metavar="TIME", help=text
    )


def count_option(*names: str, text: str, default: int | None = None, least: int = 1) -> Decorator:
    """Return an option that takes a number from `least` on."""
    return click.option(
        *names, type=click.IntRange(min=least), default=default, show_default=True, help=text
    )


def port_option(default: int) -> Decorator:
    """Return the option `--port` of a server; 0 stands for any free port."""
    return click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=default,
        show_default=True,
        help="The port to listen on; 0 chooses a free port.",
    )
