"""The options that commands share: declared options as click options, PROGRAM, and the job."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from phalanx.cluster.spec import Role
from phalanx.errors import ConfigurationError, JobError
from phalanx.launch.job import Job, Program, ProgramKind, Resources, check_name, make_name
from phalanx.launch.options import Choice, FilePath, IntegerRange, Option, OptionValues
from phalanx.launch.values import parse_duration, parse_positive_duration

Function = TypeVar("Function", bound=Callable[..., None])
Decorator = Callable[[Function], Function]


class ParsedType(click.ParamType[Any]):
    """A click type for a function that parses the text; its error is click's usage error."""

    name = "text"

    def __init__(self, parse: Callable[[str], object]) -> None:
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str | int | float):
            return value
        try:
            return self._parse(str(value))
        except (ValueError, ConfigurationError) as error:
            self.fail(str(error), param, ctx)


DURATION = ParsedType(parse_duration)
POSITIVE_DURATION = ParsedType(parse_positive_duration)

DRY_RUN: Decorator[Any] = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and do nothing."
)
MODULE: Decorator[Any] = click.option(
    "-m", "--module", is_flag=True, help="PROGRAM is a module, as in `python -m`."
)
ARGUMENTS: Decorator[Any] = click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]..."
)


def add_options(*options: Option | Decorator[Any]) -> Callable[[Function], Function]:
    """Return a decorator that adds options to a command, in the order of its --help."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            add = make_click_option(option) if isinstance(option, Option) else option
            function = add(function)
        return function

    return decorate


def make_click_option(option: Option) -> Decorator[Any]:
    """Return the click decorator of a declared option."""
    settings: dict[str, Any] = {
        "type": _make_click_type(option.type),
        "metavar": option.metavar,
        "multiple": option.multiple or None,
        "is_flag": option.is_flag or None,
        "default": option.default,
        "show_default": option.default is not None or None,
        "help": option.help,
    }
    if option.refusal:
        settings |= {"hidden": True, "expose_value": False, "callback": _make_refusal(option)}
    given = {name: value for name, value in settings.items() if value is not None}
    return click.option(option.flag, option.name, **given)


def _make_click_type(
    declared: Callable[[str], object] | IntegerRange | Choice | FilePath | None,
) -> click.ParamType[Any] | None:
    match declared:
        case None:
            return None
        case IntegerRange(minimum, maximum):
            return click.IntRange(minimum, maximum)
        case Choice(values):
            return click.Choice(values)
        case FilePath(exists, absolute):
            return click.Path(exists=exists, dir_okay=False, resolve_path=absolute)
    return ParsedType(declared)


def _make_refusal(option: Option) -> Callable[[click.Context, click.Parameter, object], None]:
    def refuse(context: click.Context, parameter: click.Parameter, value: object) -> None:
        if value:
            raise JobError(f"phalanx launch {context.info_name} {option.refusal}")

    return refuse


class ProgramCommand(click.Command):
    """A command that runs PROGRAM [ARGS]…: a file, with -m a module or, after --, any command.

    click does not tell whether `--` came before the program, which makes it a command.
    """

    _MARK = "\0"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse with a mark after the first `--`, and check where the mark ends up."""
        marked = list(args)
        if "--" in marked:
            marked.insert(marked.index("--") + 1, self._MARK)
        rest = super().parse_args(ctx, marked)
        program, arguments = ctx.params["program"], ctx.params["arguments"]
        ctx.params["is_command"] = program == self._MARK or ctx.params.get("is_command", False)
        if program != self._MARK:
            ctx.params["arguments"] = tuple(each for each in arguments if each != self._MARK)
        elif arguments:
            ctx.params["program"], *ctx.params["arguments"] = arguments
        else:
            ctx.fail("there is nothing after --: name the command to run")
        return rest


def make_job(values: OptionValues) -> Job:
    """Return the job that the options of a command describe."""
    program = values["program"]
    if not program:
        raise click.UsageError("Missing argument 'PROGRAM': give it, or put it into phalanx.toml")
    kinds = {"module": ProgramKind.MODULE, "is_command": ProgramKind.COMMAND}
    kind = next((kinds[flag] for flag in kinds if values[flag]), ProgramKind.FILE)
    name = values.get("name") or make_name(program)
    check_name(name)
    if "TF_CONFIG" in dict(values["env"]):
        raise JobError("--env TF_CONFIG cannot be set: every task gets one of its own")
    job = Job(
        name=name,
        program=Program(kind, program, tuple(values["arguments"])),
        chief=not values["no_chief"],
        workers=values["workers"] or 0,
        ps=values["ps"] or 0,
        evaluators=int(values["evaluator"]),
        model_dir=values["model_dir"],
        restarts=values["restarts"],
        threads=values.get("threads"),
        environment=dict(values["env"]),
        resources=_make_resources(values),
        time_limit=values.get("time_limit"),
        data_workers=values.get("data_workers") or 0,
    )
    job.validate()
    return job


def _make_resources(values: OptionValues) -> dict[Role, Resources]:
    cpus = _merge_roles(values.get("cpus") or ())
    memory = _merge_roles(values.get("memory") or ())
    gpus = _merge_roles(values.get("gpus") or ())
    if not (cpus or memory or gpus):
        return {}
    return {role: Resources(cpus.get(role), memory.get(role), gpus.get(role, 0)) for role in Role}


def _merge_roles(amounts: Sequence[Mapping[Role, Any]]) -> dict[Role, Any]:
    """Merge amounts; one for a single role takes precedence over one for all roles."""
    merged: dict[Role, Any] = {}
    for each in sorted(amounts, key=len, reverse=True):
        merged |= each
    return merged
