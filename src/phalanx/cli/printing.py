"""Printing of the commands. Names and messages may come from anywhere: all are made printable."""

import click

from phalanx.printable import make_printable


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text of Phalanx to stdout or stderr."""
    click.echo(make_printable(text), err=err, nl=nl)


def echo_output(text: str, *, err: bool = False) -> None:
    """Print a line that a task has printed as it is, with its colours."""
    click.echo(text, err=err)
