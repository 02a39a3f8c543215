"""Write docs/cli.md from the --help of every command; with --check, fail if it is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from phalanx.cli import cli

TARGET = Path(__file__).with_name("cli.md")
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


def main() -> None:
    """Write the page, or compare it with the commands."""
    context = cli.make_context("phalanx", [], resilient_parsing=True, terminal_width=100)
    text = "\n".join([HEAD, *describe(cli, context)])
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        sys.exit("docs/cli.md is out of date: run `make docs`")


if __name__ == "__main__":
    main()
