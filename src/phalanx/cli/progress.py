"""Progress bars on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal


@contextmanager
def show_progress(
    description: str,
    total: int | None = None,
    style: Literal["bar", "count", "download"] = "bar",
) -> Iterator[Callable[..., None] | None]:
    """Show a progress bar on stderr and yield `rich.progress.Progress.update` of its task.

    Yield None if stderr is no terminal. A download is invisible until an update shows it.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

    columns = {
        "bar": (),
        "count": (SpinnerColumn(), TextColumn(description + " {task.completed:,} examples")),
        "download": (*Progress.get_default_columns(), DownloadColumn()),
    }[style]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=total, visible=style != "download")
        yield partial(progress.update, task)
