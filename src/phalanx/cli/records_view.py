"""How `phalanx records` shows things: readable on a terminal and in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from phalanx.records import Kind, Summary
from phalanx.records.images import identify_image
from phalanx.records.storage import file_size

_BARS = "▁▂▃▄▅▆▇█"


class Sizes:
    """How large records are, in memory that does not grow: bars for sizes that double."""

    def __init__(self) -> None:
        self.count, self.least, self.greatest = 0, 0, 0
        self._bars = [0] * 65

    def add(self, sizes: list[int]) -> None:
        """Count some records."""
        low = min(sizes)
        self.least = min(low, self.least) if self.count else low
        self.greatest = max(self.greatest, *sizes)
        self.count += len(sizes)
        for size in sizes:
            self._bars[size.bit_length()] += 1

    def draw(self) -> str:
        """The bars."""
        used = self._bars[self.least.bit_length() : self.greatest.bit_length() + 1]
        top = len(_BARS) - 1
        return "".join(" " if not bar else _BARS[-(-bar * top // max(used))] for bar in used)


@contextmanager
def show_progress(paths: list[str], what: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere; call what it gives with the bytes done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=sum(map(file_size, paths)))
        yield lambda done: progress.advance(task, done)


@contextmanager
def show_count(what: str) -> Iterator[Callable[[int], None]]:
    """A running count on a terminal, nothing elsewhere; call what it gives with how many came."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

    columns = SpinnerColumn(), TextColumn(what + " {task.completed:,} examples")
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda count: progress.advance(task, count)


def echo_summary(summary: Summary) -> None:
    """Print a table of the features."""
    lines = []
    for found in summary.features:
        share = f"{100 * found.missing / summary.records:.3g}%" if found.missing else "-"
        what = "bytes " if found.feature.kind is Kind.BYTES else ""
        values = "-" if found.least is None else f"{what}{found.least:g} to {found.greatest:g}"
        lengths = str(found.shortest)
        if found.shortest != found.longest:
            lengths += f" to {found.longest}"
        lines.append((found.feature.name, found.feature.describe(), share, lengths, values))
    if lines:
        click.echo(
            "\n" + format_table(("feature", "type", "missing", "values each", "range"), lines)
        )
    else:
        click.echo("\nno features: these records are not Examples, or empty ones")


def format_table(header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as they need to be."""
    rows = [header, *lines]
    widths = [max(len(row[place]) for row in rows) for place in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def format_bytes(size: float) -> str:
    """A size as people read it, as in 3.11 kB."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}"


def format_value(value: Any) -> str:
    """A value, cut short; a picture as its format and size."""
    if isinstance(value, bytes):
        image = identify_image(value)
        if image:
            return f"{image} image ({format_bytes(len(value))})"
        if len(value) <= 60 and value.isascii() and value.decode().isprintable():
            return f'"{value.decode()}"'
        return f"{format_bytes(len(value))}: {value[:16].hex(' ')}{' …' if len(value) > 16 else ''}"
    if isinstance(value, list):
        shown = ", ".join(format_value(item) for item in value[:8])
        return f"[{shown}{', …' if len(value) > 8 else ''}] ({len(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
