"""Flags as they were spelt in TensorFlow 1 programs: underscores, and booleans with a value."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

_VALUES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class ObsoleteFlag(argparse.Action):
    """A flag that is accepted and has no effect. Its `help` is the reason, which is printed."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str = "") -> None:  # noqa: A002
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs="?", default=argparse.SUPPRESS,
            help=f"No effect: {help}", metavar="VALUE",
        )  # fmt: skip
        self._reason = help

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(f"{option_string} has no effect: {self._reason}", file=sys.stderr)


def accept_old_spellings(parser: argparse.ArgumentParser) -> None:
    """Let a parser read `--model_dir` as `--model-dir`, and `--xla=False` as `--no-xla`.

    `--xla False`, as argparse of the time read it, and `--noxla` of tf.flags are the same.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--use-xla", action=argparse.BooleanOptionalAction)
    >>> accept_old_spellings(parser)
    >>> parser.parse_args(["--use_xla=False"])
    Namespace(use_xla=False)
    """
    parse_known_args = parser.parse_known_args

    def parse(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        return parse_known_args(list(_respell(parser, given)), namespace)

    parser.parse_known_args = parse  # type: ignore[method-assign, assignment]


def _respell(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Iterator[str]:
    # argparse has no public list of its flags.
    actions = parser._option_string_actions
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            yield from [argument, *rest]
            return
        flag, equals, value = argument.partition("=")
        if flag.startswith("--") and flag not in actions:
            dashed = flag.replace("_", "-")
            named = f"--{dashed.removeprefix('--no')}"
            if dashed in actions:
                flag = dashed
            elif dashed.startswith("--no") and not equals and _is_boolean(actions.get(named)):
                flag, equals, value = named, "=", "false"
        if not _takes_no_value(actions.get(flag)):
            yield flag + equals + value
            continue
        if not equals and rest and rest[0].lower() in ("true", "false"):
            equals, value = "=", rest.pop(0)
        if not equals or value.lower() not in _VALUES:
            yield flag + equals + value
        elif _VALUES[value.lower()]:
            yield flag
        elif f"--no-{flag.removeprefix('--')}" in actions:
            yield f"--no-{flag.removeprefix('--')}"


def _is_boolean(action: argparse.Action | None) -> bool:
    return _takes_no_value(action) or isinstance(action, ObsoleteFlag)


def _takes_no_value(action: argparse.Action | None) -> bool:
    return action is not None and action.nargs == 0
