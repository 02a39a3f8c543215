"""Write the pages that are generated; with --check, fail if one is out of date.

docs/cli.md comes from the --help of every command, docs/guide/keras-differences.md from the table
of tests/parity.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from phalanx.cli import cli
from phalanx.launch.processes.runtime_lines import import_tensorflow

DOCS = Path(__file__).parent
HEAD = """\
# Command reference

The output of `phalanx COMMAND --help` for every command. `make docs` writes this page.
"""


def describe(command: click.Command, context: click.Context) -> list[str]:
    """Return the help of a command and of its subcommands, as Markdown."""
    text = command.get_help(context)
    parts = [f"## `{context.command_path}`\n\n```text\n{text}\n```\n"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            inner_context = click.Context(
                inner, info_name=name, parent=context, max_content_width=100, terminal_width=100
            )
            parts += describe(inner, inner_context)
    return parts


def describe_commands() -> str:
    context = cli.make_context("phalanx", [], resilient_parsing=True, terminal_width=100)
    return "\n".join([HEAD, *describe(cli, context)])


def describe_differences() -> str:
    import_tensorflow()
    # The tests are not an installed package.
    sys.path.insert(0, str(DOCS.parent))
    page: str = importlib.import_module("tests.parity.page").describe()
    return page


PAGES = {
    DOCS / "cli.md": describe_commands,
    DOCS / "guide" / "keras-differences.md": describe_differences,
}


def main() -> None:
    """Write the pages, or compare them with what would be written."""
    for path, describe_page in PAGES.items():
        text = describe_page()
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(DOCS.parent)} is out of date: run `make docs`")


if __name__ == "__main__":
    main()
