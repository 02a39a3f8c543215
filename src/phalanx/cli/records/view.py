"""How `phalanx records` prints sizes, values and summaries."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from phalanx.cli.printing import echo
from phalanx.cli.progress import show_progress
from phalanx.cli.terminal import print_table
from phalanx.records import Summary
from phalanx.records.html import format_bytes
from phalanx.records.images import identify_image
from phalanx.records.schema import SUMMARY_HEADER
from phalanx.records.storage import file_size

_BARS = "▁▂▃▄▅▆▇█"


class SizeHistogram:
    """A histogram of record sizes, with one bar per power of two."""

    def __init__(self) -> None:
        self.count, self.least, self.greatest = 0, 0, 0
        self._bars = [0] * 65

    def add(self, sizes: list[int]) -> None:
        low = min(sizes)
        self.least = min(low, self.least) if self.count else low
        self.greatest = max(self.greatest, *sizes)
        self.count += len(sizes)
        for size in sizes:
            self._bars[size.bit_length()] += 1

    def draw(self) -> str:
        used = self._bars[self.least.bit_length() : self.greatest.bit_length() + 1]
        top = len(_BARS) - 1
        return "".join(" " if not bar else _BARS[-(-bar * top // max(used))] for bar in used)


@contextmanager
def show_bytes(paths: list[str], description: str) -> Iterator[Callable[[int], None]]:
    """Show a progress bar over the bytes of files; yield a function that takes the bytes read."""
    on_terminal = sys.stderr.isatty()
    with show_progress(description, sum(map(file_size, paths)) if on_terminal else None) as update:
        yield lambda done: update(advance=done) if update else None


def print_summary(summary: Summary) -> None:
    rows = [found.describe(summary.records) for found in summary.features]
    if not rows:
        return echo("\nno features: these records are not Examples, or are empty Examples")
    echo()
    return print_table(SUMMARY_HEADER, rows)


def format_value(value: object) -> str:
    """Write a value in short form; an image as its format and size."""
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
