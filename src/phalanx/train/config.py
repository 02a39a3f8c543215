"""How to train: everything that is not the experiment itself."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from phalanx.errors import ConfigurationError


class Mode(StrEnum):
    """How the updates of several trainers meet."""

    SYNC = "sync"
    ASYNC = "async"


@dataclass(frozen=True)
class RunConfig:
    """How to train an experiment, the same for every task of a run.

    >>> RunConfig(model_dir="runs/digits", train_steps=1000).global_batch_size
    32

    What is set in code counts first, then the flags (`add_flags`, `from_flags`), then TF_CONFIG.
    """

    model_dir: str | None = None
    """Where checkpoints and summaries go: written by the chief, and by an evaluator in `eval`."""

    train_steps: int | None = None
    """Stop at this step. Data that ends before is read again from its start."""

    epochs: int | None = None
    """Stop when the data was read this many times."""

    global_batch_size: int = 32
    """How many examples make one update in step; asynchronously, each trainer takes its share."""

    mode: Mode | None = None
    """In step or asynchronously. Unset: asynchronously where there are parameter servers."""

    replicas_to_aggregate: int | None = None
    """In step on ps: how many gradients make an update; the other trainers are backups."""

    chief_trains: bool = True
    """On ps: whether the chief is a trainer too."""

    save_steps: int | None = None
    """Save after so many steps."""

    save_seconds: float | None = 600
    """Save after so many seconds; not looked at if `save_steps` is set."""

    keep_max: int = 5
    """How many of the last checkpoints to keep."""

    keep_every_hours: float = 10_000
    """Besides these, keep one for ever each so many hours."""

    summary_steps: int | None = 100
    """Write summaries for TensorBoard after so many steps."""

    log_steps: int | None = 100
    """Log the loss, the metrics and the speed after so many steps."""

    eval_steps: int | None = None
    """How many batches of each task an evaluation takes at most. Unset: the whole set."""

    eval_every_steps: int | None = None
    """Evaluate after so many steps, beside the evaluation at the end."""

    eval_every_seconds: float | None = None
    """Evaluate after so many seconds, beside the evaluation at the end."""

    seed: int | None = None
    """Makes initial weights and dropout the same in every run."""

    devices: tuple[str, ...] | int | None = None
    """Which devices of this host to use, by name ("GPU:0") or how many GPUs. Unset: all GPUs. In a
    cluster every task uses all that it sees: set CUDA_VISIBLE_DEVICES."""

    variables: Literal["device", "cpu"] = "device"
    """With several devices: a copy of the weights on each, or one on the host."""

    mixed_precision: Literal["float16", "bfloat16"] | None = None
    """Compute with half of the bits; weights stay in float32."""

    xla: bool = False
    """Compile the step with XLA."""

    clip_norm: float | None = None
    """Clip gradients by their global norm."""

    accumulate: int = 1
    """Cut each replica's share of a batch into so many parts, one after the other."""

    steps_per_call: int | None = None
    """How many steps to run without coming back to Python. Unset: as many as keep hooks on time."""

    wait_seconds: float = 300
    """How long to wait for a peer before giving up."""

    resume_data: bool = True
    """After a restart, skip the batches that were already seen."""

    def __post_init__(self) -> None:
        for name in ("train_steps", "epochs", "global_batch_size", "accumulate", "save_steps",
                     "summary_steps", "log_steps", "eval_steps", "eval_every_steps", "keep_max",
                     "replicas_to_aggregate", "steps_per_call"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}: it must be at least 1")
        for name in ("save_seconds", "keep_every_hours", "eval_every_seconds", "clip_norm",
                     "wait_seconds"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} is {value}: it must be more than 0")
        for field in dataclasses.fields(self):
            choices, value = _choices(str(field.type)), getattr(self, field.name)
            if choices and value is not None and value not in choices:
                raise ConfigurationError(
                    f"{field.name} is {value!r}: it must be {' or '.join(map(repr, choices))}"
                )
        if self.mode is not None and not isinstance(self.mode, Mode):
            try:
                object.__setattr__(self, "mode", Mode(self.mode))
            except ValueError:
                raise ConfigurationError(
                    f"mode is {self.mode!r}: it must be 'sync' or 'async'"
                ) from None

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser) -> None:
        """Mount the flags on a program's own parser; `from_flags` reads them.

        >>> parser = argparse.ArgumentParser()
        >>> RunConfig.add_flags(parser)
        >>> arguments = parser.parse_args(["--model-dir", "runs/a", "--train-steps", "10"])
        >>> RunConfig.from_flags(arguments, seed=7).train_steps
        10
        """
        group = parser.add_argument_group("training")
        unset = argparse.SUPPRESS
        for field in dataclasses.fields(cls):
            text = _documentation()[field.name].replace("%", "%%")
            flag = "--" + field.name.replace("_", "-")
            if field.name == "mode":
                both = group.add_mutually_exclusive_group()
                for mode, meaning in ((Mode.SYNC, "in step"), (Mode.ASYNC, "asynchronously")):
                    both.add_argument(
                        f"--{mode}", dest="mode", action="store_const", const=mode, default=unset,
                        help=f"Train {meaning}.",
                    )  # fmt: skip
            elif field.type == "bool":
                group.add_argument(
                    flag, action=argparse.BooleanOptionalAction, default=unset, help=text
                )
            else:
                group.add_argument(
                    flag, type=_parser(str(field.type)), default=unset, help=text,
                    choices=_choices(str(field.type)), metavar=_metavar(str(field.type)),
                )  # fmt: skip

    @classmethod
    def from_flags(cls, arguments: argparse.Namespace, **settings: Any) -> RunConfig:
        """From parsed flags; what is set here in code counts more than a flag."""
        names = {field.name for field in dataclasses.fields(cls)}
        flags = {key: value for key, value in vars(arguments).items() if key in names}
        return cls(**{**flags, **settings})

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None, **settings: Any) -> RunConfig:
        """From the command line alone, for programs that have no other flags."""
        parser = argparse.ArgumentParser()
        cls.add_flags(parser)
        return cls.from_flags(parser.parse_args(argv), **settings)

    def replace(self, **settings: Any) -> RunConfig:
        """The same with some settings changed."""
        return dataclasses.replace(self, **settings)

    def describe(self) -> str:
        """The settings as they are logged at the start: a line for each that is set."""
        lines = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                mark = "" if value == field.default else "  (set)"
                lines.append(f"  {field.name:22} {value}{mark}")
        return "\n".join(lines)


@cache
def _documentation() -> dict[str, str]:
    """The sentence below each setting is its flag's help too."""
    tree = ast.parse(inspect.getsource(RunConfig))
    body: list[Any] = tree.body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for before, after in itertools.pairwise(body):
        if isinstance(before, ast.AnnAssign):
            found[ast.unparse(before.target)] = ast.literal_eval(after.value)
    return found


def _parser(annotation: str) -> Any:
    if annotation.startswith("int"):
        return int
    if annotation.startswith("float"):
        return float
    if annotation.startswith("tuple"):
        return lambda text: int(text) if text.isdecimal() else tuple(text.split(","))
    return str


def _choices(annotation: str) -> list[str] | None:
    return re.findall(r"['\"](\w+)['\"]", annotation) if annotation.startswith("Literal") else None


def _metavar(annotation: str) -> str | None:
    if annotation.startswith("Literal"):
        return None
    return {"int": "N", "float": "X"}.get(annotation.split(" ", maxsplit=1)[0], "VALUE")
