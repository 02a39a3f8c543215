"""`phalanx tf1`: TensorFlow 1 programs."""

import sys
from collections import Counter
from pathlib import Path

import click

from phalanx.cli.command_group import CommandGroup
from phalanx.cli.printing import echo


@click.group(cls=CommandGroup)
def command() -> None:
    """Check TensorFlow 1 programs before you run them with --tf1.

    \b
    Example:
      phalanx tf1 check train.py
      phalanx run --tf1 --ps 1 --workers 2 train.py
    """


@command.command()
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@click.option("--only-missing", is_flag=True, help="List only the names that do not work.")
def check(paths: tuple[Path, ...], only_missing: bool) -> None:
    """List the TensorFlow 1 names of programs, and say which of them work under --tf1.

    PATH is a program or a directory of programs; hidden directories in it are skipped. The source
    is read; nothing is run, and TensorFlow is not loaded. Each line has the name, where it is used,
    how it differs or what to use instead under --tf1, and after the arrow its replacement in a
    program for TensorFlow 2.

    The exit code is 0 if all names work, 1 if one is missing, and 2 if a file cannot be read.

    \b
    Example:
      phalanx tf1 check train.py
      phalanx tf1 check --only-missing trainer/
    """
    from phalanx.compat.tf1.check.report import Status, check_source, list_programs, render  # noqa: PLC0415
    from phalanx.compat.tf1.check.sources import Sources  # noqa: PLC0415

    sources, counts = Sources.find(), Counter[Status]()
    files = [file for path in paths for file in list_programs(path)]
    for file in files:
        findings = check_source(file.read_text(errors="replace"), sources)
        counts.update(finding.status for finding in findings)
        shown = [f for f in findings if f.status is Status.MISSING or not only_missing]
        if shown:
            echo("\n".join([f"{file}:", *render(shown)]))
    echo(
        f"{len(files)} file{'s' * (len(files) > 1)}: {counts[Status.WORKS]} names work, "
        f"{counts[Status.DIFFERS]} work differently, {counts[Status.MISSING]} are missing"
    )
    sys.exit(1 if counts[Status.MISSING] else 0)
