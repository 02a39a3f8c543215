"""The options that commands share: declared options as click options, PROGRAM, and the job."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from phalanx.cli.printing import echo
from phalanx.cluster.spec import Role
from phalanx.errors import ConfigurationError, JobError
from phalanx.launch.job import Job, Program, ProgramKind, Resources, check_name, make_name
from phalanx.launch.options import (
    Choice,
    FilePath,
    IntegerRange,
    Option,
    OptionValues,
    hides_secrets,
)
from phalanx.launch.secrets import HIDDEN, hide_values
from phalanx.launch.values import (
    has_control_characters,
    parse_duration,
    parse_positive_duration,
)

_LONGEST_FILE_NAME = 255

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


class _Path(click.Path):
    """A path from phalanx.toml, which can hold characters that no argument can."""

    def convert(
        self,
        value: "str | os.PathLike[str]",
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        if "\0" in str(value):
            self.fail(f"{value!r} has a null character", param, ctx)
        return super().convert(value, param, ctx)


DURATION = ParsedType(parse_duration)
POSITIVE_DURATION = ParsedType(parse_positive_duration)

DRY_RUN: Decorator[Any] = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and do nothing."
)
SHOW_SECRETS: Decorator[Any] = click.option(
    "--show-secrets", is_flag=True, help="With --dry-run: print values that may be secrets, too."
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
            return _Path(exists=exists, dir_okay=False, resolve_path=absolute)
    return ParsedType(declared)


def _make_refusal(option: Option) -> Callable[[click.Context, click.Parameter, object], None]:
    def refuse(context: click.Context, parameter: click.Parameter, value: object) -> None:
        is_unset = value is None or value is False or value == ()
        if not is_unset:
            raise JobError(f"phalanx launch {context.info_name} {option.refusal}")

    return refuse


class CheckedCommand(click.Command):
    """A command whose values end in file names, scripts and manifests: each is one line."""

    # The arguments and variables of a program are quoted wherever they are used.
    _FREE = ("arguments", "env")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        self.check_texts(ctx)
        return rest

    def check_texts(self, ctx: click.Context) -> None:
        for parameter in self.params:
            value = None if parameter.name in self._FREE else ctx.params.get(parameter.name or "")
            for text in _list_texts(value):
                if has_control_characters(text):
                    reason = f"{text!r} has a line break or another control character"
                    raise click.BadParameter(reason, ctx, parameter)
                longest = max(len(part.encode(errors="replace")) for part in text.split("/"))
                if longest > _LONGEST_FILE_NAME and isinstance(parameter, click.Option):
                    reason = f"{text[:40]!r}… is longer than {_LONGEST_FILE_NAME} bytes"
                    raise click.BadParameter(reason, ctx, parameter)


def _list_texts(value: object) -> Iterator[str]:
    """Yield every text in the value of an option, which may be parsed already."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _list_texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _list_texts(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from _list_texts(getattr(value, each.name))


class ProgramCommand(CheckedCommand):
    """A command that runs PROGRAM [ARGS]…: a file, with -m a module or, after --, any command.

    click does not tell whether `--` came before the program, which makes it a command. An option of
    the command after PROGRAM is an error, unless `--` follows PROGRAM or the option is also a flag
    of `phalanx.RunConfig`: a misplaced --dry-run would submit the job.
    """

    _MARK = "\0"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse with a mark after the first `--`, and check where the mark ends up."""
        marked = list(args)
        if "--" in marked:
            marked.insert(marked.index("--") + 1, self._MARK)
        rest = click.Command.parse_args(self, ctx, marked)
        program, arguments = ctx.params["program"], ctx.params["arguments"]
        ctx.params["is_command"] = program == self._MARK or ctx.params.get("is_command", False)
        if program != self._MARK:
            ctx.params["arguments"] = self._check_arguments(ctx, program, arguments)
        elif arguments:
            ctx.params["program"], *ctx.params["arguments"] = arguments
        else:
            ctx.fail("there is nothing after --: name the command to run")
        self.check_texts(ctx)
        return rest

    def _check_arguments(
        self, ctx: click.Context, program: str | None, arguments: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the program's arguments; fail if one of them is an option of this command."""
        given = [each for each in arguments if each != self._MARK]
        if given[:1] == ["--"]:
            return tuple(given[1:])
        if ctx.get_parameter_source("arguments") is not ParameterSource.COMMANDLINE:
            return tuple(given)
        ours = {name for each in self.params for name in each.opts if name.startswith("--")}
        own = given[: given.index("--")] if "--" in given else given
        misplaced = [flag for each in own if (flag := each.partition("=")[0]) in ours]
        if misplaced and (found := [each for each in misplaced if not _is_run_flag(each)]):
            ctx.fail(
                f"{found[0]} comes after {program} and would go to the program: put it before "
                f"{program}, or -- after {program} if the program has an option of this name"
            )
        return tuple(given)


def _is_run_flag(flag: str) -> bool:
    from phalanx.train.config import RunConfig  # noqa: PLC0415

    return flag.removeprefix("--").replace("-", "_") in RunConfig.__dataclass_fields__


def print_plan(text: str, values: OptionValues) -> None:
    """Print the plan of a dry run, and whether it is incomplete because of hidden values."""
    echo(text)
    if hides_secrets(values) and HIDDEN in text:
        echo(
            f"phalanx: values that may be secrets are printed as {HIDDEN}: add --show-secrets to "
            "print a plan that can be used",
            err=True,
        )


def make_job(values: OptionValues) -> Job:
    """Return the job that the options of a command describe; a dry run hides its secrets."""
    program = values["program"]
    if not program:
        raise click.UsageError("Missing argument 'PROGRAM': give it, or put it into phalanx.toml")
    kinds = {"module": ProgramKind.MODULE, "is_command": ProgramKind.COMMAND}
    kind = next((kinds[flag] for flag in kinds if values[flag]), ProgramKind.FILE)
    name = values.get("name") or make_name(program)
    check_name(name)
    if "TF_CONFIG" in {**dict(values["env"]), **dict(values.get("env_from_secret") or ())}:
        raise JobError("--env TF_CONFIG cannot be set: every task gets one of its own")
    environment = dict(values["env"])
    job = Job(
        name=name,
        program=Program(kind, program, tuple(values["arguments"]), tf1=values["tf1"]),
        chief=not values["no_chief"],
        workers=values["workers"] or 0,
        ps=values["ps"] or 0,
        evaluators=int(values["evaluator"]),
        model_dir=values["model_dir"],
        restarts=values["restarts"],
        threads=values.get("threads"),
        environment=hide_values(environment) if hides_secrets(values) else environment,
        resources=_make_resources(values),
        time_limit=values.get("time_limit"),
        data_workers=values.get("data_workers") or 0,
        master=values["master"] or (values["tf1"] and not values["no_chief"]),
        secrets=dict(values.get("env_from_secret") or ()),
        min_workers=values.get("min_workers"),
        max_workers=values.get("max_workers"),
    )
    job.validate(can_scale=True)  # The launcher may refuse it.
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
