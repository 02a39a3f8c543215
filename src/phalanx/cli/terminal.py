"""Tables and colours, on a terminal only; the variable NO_COLOR turns colours off."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.printable import make_printable

STATE_COLOURS = {
    "running": "bold",
    "waiting": "dim",
    "done": "green",
    "succeeded": "green",
    "failed": "bold red",
    "silent": "yellow",
    "interrupted": "yellow",
    "ended": "dim",
    "unknown": "dim",
}
# Wide enough that nothing is cut in a pipe.
_PIPE_WIDTH = 1000


def make_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr, which cuts and wraps no line in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH)


def colour_state(text: str) -> Text:
    """Colour a text that begins with a state, such as `failed: out of memory`."""
    return Text(make_printable(text), style=STATE_COLOURS.get(text.partition(":")[0], ""))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str | Text]], numbers: Sequence[str] = ()
) -> None:
    """Print a table to stdout; the columns named in `numbers` are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in header:
        table.add_column(name, justify="right" if name in numbers else "left")
    for row in rows:
        cells = (Text(make_printable(cell)) if isinstance(cell, str) else cell for cell in row)
        table.add_row(*cells)
    console = make_console()
    with console.capture() as capture:
        console.print(table)
    # Rich fills lines with spaces up to the width of the table.
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))
    sys.stdout.flush()
