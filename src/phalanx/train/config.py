"""RunConfig: every setting of a run, and its flags on the command line."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeVar

from phalanx.errors import ConfigurationError
from phalanx.train.flags import accept_old_spellings

T = TypeVar("T")


class Mode(StrEnum):
    """Whether trainers update the weights together (`SYNC`) or independently (`ASYNC`)."""

    SYNC = "sync"
    ASYNC = "async"


def setting(default: T, text: str) -> T:
    """Return a dataclass field with a default and the help of its flag."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class RunConfig:
    """How to train an experiment, the same for every task of a run.

    Settings in code override flags (`add_flags`, `from_flags`), which override TF_CONFIG. Every
    setting is also a flag; `python train.py --help` describes them all.

    >>> RunConfig(model_dir="runs/digits", train_steps=1000).global_batch_size
    32
    """

    model_dir: str | None = setting(
        None, "The directory for checkpoints and summaries; an evaluator writes to `eval` in it."
    )
    train_steps: int | None = setting(
        None, "Stop at this step. If the data ends before, it is read again from the start."
    )
    epochs: int | None = setting(None, "Stop after this number of passes over the data.")
    global_batch_size: int = setting(
        32, "Examples per synchronous update; an asynchronous trainer takes its share of them."
    )
    round_batch_size: bool = setting(
        False,
        "Round `global_batch_size` down to a multiple of the number of replicas. By default, a "
        "batch that they cannot share evenly is an error.",
    )
    mode: Mode | None = setting(  # noqa: RUF009
        None, "How trainers update the weights. Unset: asynchronously if there are ps tasks."
    )
    replicas_to_aggregate: int | None = setting(
        None, "Synchronous training on ps: gradients per update; the other trainers are backups."
    )
    ps_replicas: int = setting(
        1,
        "How many ps have a copy of each variable. With 2, nothing but the updates in flight is "
        "lost with a ps; every update is made twice.",
    )
    chief_trains: bool = setting(True, "On ps: whether the chief is a trainer as well.")
    save_steps: int | None = setting(None, "Save a checkpoint every N steps.")
    save_seconds: float | None = setting(
        600, "Save a checkpoint every X seconds. Ignored if `save_steps` is set."
    )
    keep_max: int = setting(5, "The number of recent checkpoints to keep.")
    keep_every_hours: float = setting(
        10_000, "In addition to these, keep one checkpoint of every X hours."
    )
    save_retry_seconds: float = setting(
        3600,
        "How long to train on when checkpoints cannot be written, as on a full disk, before the "
        "run fails.",
    )
    max_loss_ratio: float | None = setting(
        None,
        "The run has diverged when the loss is so many times larger than the median of the last "
        "losses. Unset: only when the loss or a variable is NaN or infinite.",
    )
    max_rollbacks: int = setting(
        3,
        "How often a run that has diverged goes back to the last checkpoint, and on with the data "
        "behind that which it diverged on, before it fails. 0: it fails at once.",
    )
    save_in_background: bool = setting(
        True,
        "Whether sparse tables over 64 MB are saved while training goes on; this needs memory for "
        "the rows that change meanwhile.",
    )
    full_save_every: int | None = setting(
        None,
        "Save sparse tables over 64 MB whole in every N-th checkpoint; the others have the rows "
        "that changed since then, and need the whole one to be restored. Unset: in each.",
    )
    summary_steps: int | None = setting(100, "Write summaries for TensorBoard every N steps.")
    summary_seconds: float | None = setting(
        None, "Write summaries every X seconds, instead of every `summary_steps`."
    )
    log_steps: int | None = setting(100, "Log the loss, the metrics and the speed every N steps.")
    eval_steps: int | None = setting(
        None, "Evaluate at most this number of batches in each task. Unset: all evaluation data."
    )
    eval_every_steps: int | None = setting(
        None, "Evaluate every N steps, in addition to the evaluation at the end."
    )
    eval_every_seconds: float | None = setting(
        None, "Evaluate every X seconds, in addition to the evaluation at the end."
    )
    seed: int | None = setting(
        None, "The random seed. Runs with the same seed have the same initial weights and dropout."
    )
    devices: tuple[str, ...] | int | None = setting(
        None,
        'The devices of this host to use: names ("GPU:0"), or the number of GPUs. Unset: all GPUs. '
        "In a cluster, every task uses all devices that it sees: set CUDA_VISIBLE_DEVICES.",
    )
    variables: Literal["device", "cpu"] = setting(
        "device", "With several devices: a copy of the weights on each device, or one on the host."
    )
    mixed_precision: Literal["float16", "bfloat16"] | None = setting(
        None, "Compute in half precision. The weights stay in float32."
    )
    xla: bool = setting(False, "Compile the step with XLA.")
    clip_norm: float | None = setting(None, "Clip the gradients by their global norm.")
    accumulate: int = setting(
        1, "Split each replica's share of a batch into N parts, and accumulate their gradients."
    )
    compress: Literal["float16", "bfloat16"] | None = setting(
        None,
        "All-reduce: exchange the dense gradients in half precision, which halves what travels. "
        "Weights, metrics and the rows of sparse tables stay as they are.",
    )
    communication: Literal["ring", "nccl"] | None = setting(
        None, "All-reduce: how tensors travel between hosts. Unset: NCCL between GPUs, else a ring."
    )
    bytes_per_pack: int | None = setting(
        None,
        "All-reduce: exchange gradients in packs of about N bytes, each as soon as it is computed. "
        "Unset: all at once.",
    )
    collective_seconds: float | None = setting(
        None,
        "All-reduce: fail when an exchange takes longer, and so the longest evaluation or save of "
        "the chief as well. Unset: fail when a peer gives no sign of life for a minute.",
    )
    steps_per_call: int | None = setting(
        None,
        "Steps to run per call from Python. Unset: as many as possible without delaying hooks.",
    )
    hooks: str | None = setting(
        None,
        "Hooks to add, by name, separated by commas: mlflow, wandb, hparams, and those that other "
        "packages provide.",
    )
    metrics_port: int | None = setting(
        None, "Serve metrics for Prometheus at this port of the chief, under /metrics."
    )
    metrics_host: str | None = setting(
        None, "The address that the metrics are served at. Unset: this host itself (127.0.0.1)."
    )
    wait_seconds: float = setting(300, "How long to wait for another task before giving up.")
    resume_data: bool = setting(
        True, "After a restart, skip the batches that the run has read already."
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, annotation, value = field.name, str(field.type), getattr(self, field.name)
            if value is None:
                continue
            least = 0 if name == "max_rollbacks" else 1
            if annotation.startswith("int") and name != "seed" and value < least:
                raise ConfigurationError(f"{name} is {value}: it must be at least {least}")
            if annotation.startswith("float") and not value > 0:
                raise ConfigurationError(f"{name} is {value}: it must be more than 0")
            choices = _choices(annotation)
            if choices and value not in choices:
                expected = " or ".join(map(repr, choices))
                raise ConfigurationError(f"{name} is {value!r}: it must be {expected}")
        if self.mode is not None:
            object.__setattr__(self, "mode", Mode(self.mode))

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser) -> None:
        """Add a flag for every setting to a parser; `from_flags` reads them.

        The parser then accepts no abbreviations, because `--steps` must not set `--steps-per-call`,
        and reads every flag in the spelling of TensorFlow 1 as well: `--model_dir`, `--xla=False`.

        >>> parser = argparse.ArgumentParser()
        >>> RunConfig.add_flags(parser)
        >>> arguments = parser.parse_args(["--model-dir", "runs/a", "--train-steps", "10"])
        >>> RunConfig.from_flags(arguments, seed=7).train_steps
        10
        """
        parser.allow_abbrev = False
        accept_old_spellings(parser)
        group = parser.add_argument_group("training")
        unset = argparse.SUPPRESS
        for field in dataclasses.fields(cls):
            text = field.metadata["help"].replace("%", "%%")
            flag = "--" + field.name.replace("_", "-")
            if field.name == "mode":
                modes = group.add_mutually_exclusive_group()
                for mode, adverb in ((Mode.SYNC, "synchronously"), (Mode.ASYNC, "asynchronously")):
                    modes.add_argument(
                        f"--{mode}", dest="mode", action="store_const", const=mode, default=unset,
                        help=f"Train {adverb}.",
                    )  # fmt: skip
            else:
                options = _flag_options(str(field.type))
                group.add_argument(flag, default=unset, help=text, **options)

    @classmethod
    def from_flags(cls, arguments: argparse.Namespace, **settings: Any) -> RunConfig:
        """Create a config from parsed flags.

        Args:
            arguments: What the parser returned.
            settings: Settings that override the flags.

        Returns:
            The config.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        flags = {key: value for key, value in vars(arguments).items() if key in names}
        return cls(**{**flags, **settings})

    @classmethod
    def parse(cls, argv: Sequence[str] | None = None, **settings: Any) -> RunConfig:
        """Create a config from the command line, for programs without flags of their own.

        Args:
            argv: The arguments. By default, those of the process.
            settings: Settings that override the flags.

        Returns:
            The config.
        """
        parser = argparse.ArgumentParser()
        cls.add_flags(parser)
        return cls.from_flags(parser.parse_args(argv), **settings)

    @classmethod
    def parse_known(cls) -> RunConfig:
        """Create a config from those flags of the process that are settings; ignore all others."""
        parser = argparse.ArgumentParser(add_help=False)
        cls.add_flags(parser)
        return cls.from_flags(parser.parse_known_args()[0])

    def replace(self, **settings: Any) -> RunConfig:
        """Return a copy with some settings changed."""
        return dataclasses.replace(self, **settings)

    def describe(self) -> str:
        """Return the settings that differ from their defaults; the chief logs them."""
        values = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        changed = [f"{field.name}={value}" for field, value in values if value != field.default]
        return ", ".join(changed) or "all settings have their defaults"


def _choices(annotation: str) -> list[str] | None:
    if annotation.startswith("Mode"):
        return [str(mode) for mode in Mode]
    return re.findall(r"['\"](\w+)['\"]", annotation) if annotation.startswith("Literal") else None


def _flag_options(annotation: str) -> dict[str, Any]:
    """Return what `add_argument` takes for a setting of this type."""
    if annotation == "bool":
        return {"action": argparse.BooleanOptionalAction}
    if choices := _choices(annotation):
        return {"choices": choices}
    if annotation.startswith("int"):
        return {"type": int, "metavar": "N"}
    if annotation.startswith("float"):
        return {"type": float, "metavar": "X"}
    return {"type": _parse_devices if annotation.startswith("tuple") else str, "metavar": "VALUE"}


def _parse_devices(text: str) -> int | tuple[str, ...]:
    return int(text) if text.isdecimal() else tuple(text.split(","))
