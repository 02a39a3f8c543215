"""Tables of HTML, which notebooks show for schemas, summaries, indexes and reports."""

import html
from collections.abc import Iterable, Sequence


def draw_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Draw a table; names in files may be anything, so every text is escaped.

    >>> draw_table("2 records", ["name"], [["<b>"]])
    '<table><caption>2 records</caption><tr><th>name</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    return (
        f"<table><caption>{_escape(title)}</caption>{_draw_row('th', header)}"
        f"{''.join(_draw_row('td', row) for row in rows)}</table>"
    )


def _draw_row(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _escape(value: object) -> str:
    return html.escape(str(value))


def format_bytes(size: float) -> str:
    """Write a size with its unit, as in 3.11 kB."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}"
