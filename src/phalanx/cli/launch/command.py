"""Builds the `phalanx launch` command of any backend, and reads phalanx.toml for it."""

import inspect
from pathlib import Path
from typing import Any

import click

from phalanx.cli.launch.job_file import DEFAULT, read_job_file, read_settings
from phalanx.cli.launch.submission import launch
from phalanx.cli.options import (
    ARGUMENTS,
    DRY_RUN,
    MODULE,
    SHOW_SECRETS,
    Decorator,
    ProgramCommand,
    add_options,
    make_job,
)
from phalanx.errors import ConfigurationError
from phalanx.launch import registry
from phalanx.launch.base import LastingLauncher
from phalanx.launch.options import RESOURCES, SHAPE, TIME_LIMIT, Option, is_configurable

_FILE_ERROR = f"{__name__}.file_error"


class LaunchCommand(ProgramCommand):
    """A command whose options can also be set in phalanx.toml.

    `aliases` maps former names of options, without dashes, to the current ones.
    """

    def __init__(self, *args: Any, aliases: dict[str, str], **more: Any) -> None:
        self.aliases = aliases
        more["context_settings"] = {
            "allow_interspersed_args": False,
            "token_normalize_func": lambda name: aliases.get(name, name),
        }
        super().__init__(*args, **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if _FILE_ERROR in ctx.meta:
            raise ctx.meta[_FILE_ERROR]
        return rest


def _read_file(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Make the settings of phalanx.toml the defaults of the options that are parsed after it.

    An error in the file is raised after parsing, because --help must work whatever is in the file.
    """
    path = Path(value or DEFAULT)
    assert isinstance(ctx.command, LaunchCommand)
    try:
        if value or path.is_file():
            content = read_job_file(path)
            ctx.default_map = read_settings(
                content, ctx.command, ctx.command.aliases, registry.names(), str(path)
            )
    except ConfigurationError as error:
        ctx.meta[_FILE_ERROR] = error


_FIRST: tuple[Option | Decorator[Any], ...] = (
    click.option(
        "-f",
        "--file",
        metavar="TOML",
        # Eager, so that it is parsed before the options that it sets.
        is_eager=True,
        expose_value=False,
        callback=_read_file,
        help="Read settings from this file  [default: phalanx.toml, if it exists]",
    ),
    Option("--name", "The name of the job  [default: from PROGRAM]"),
    *SHAPE,
    TIME_LIMIT,
)
_LAST: tuple[Decorator[Any], ...] = (
    click.option(
        "--follow", is_flag=True, help="Show all output, and exit with the exit code of the job."
    ),
    DRY_RUN,
    SHOW_SECRETS,
    MODULE,
    click.option(
        "--command", "is_command", is_flag=True, help="PROGRAM is any command, as after --."
    ),
    click.argument("program", metavar="PROGRAM", required=False),
    ARGUMENTS,
)
_DEFAULT_HELP = """
    Start a job on {name}.

    Example:
      phalanx launch {name} --workers 2 train.py
"""


def make_command(name: str) -> click.Command:
    launcher = _find_if_valid(name)
    configurable = launcher if launcher is not None and is_configurable(launcher) else None
    options = RESOURCES if configurable is None else configurable.launch_options

    @add_options(*_FIRST, *options, *_LAST)
    def run(**values: Any) -> None:
        job = make_job(values)
        if configurable is None:
            launch(name, registry.find_lasting(name)(), job, values)
        else:
            launch(name, configurable.from_options(job, values), job, values)

    text = inspect.cleandoc(getattr(launcher, "launch_help", _DEFAULT_HELP.format(name=name)))
    # click must not rewrap the examples.
    help_text = text.replace("\nExample:", "\n\b\nExample:")
    aliases = {
        alias.removeprefix("--"): option.flag.removeprefix("--")
        for option in options
        for alias in option.aliases
    }
    decorate = click.command(name=name, cls=LaunchCommand, help=help_text, aliases=aliases)
    return decorate(run)


def _find_if_valid(name: str) -> type[LastingLauncher[Any]] | None:
    """Find a launcher; None if a package provides a broken one, which fails when it is called."""
    try:
        return registry.find_lasting(name)
    except Exception:
        if name in registry.BUILT_IN:
            raise
        return None
