"""What is known of a run without TensorFlow: its curves and its state, in plain files."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

EVALUATIONS = "eval/eval.jsonl"
TRAINING = "train.jsonl"

# Of these more is better; of everything else less is.
_MORE_IS_BETTER = {
    "accuracy", "acc", "auc", "precision", "recall", "f1", "iou", "io", "map", "bleu", "r2",
    "score", "dice", "ndcg", "mrr", "top",
}  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """One line of eval.jsonl, or of train.jsonl: the figures of a step."""

    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    time: float = 0.0
    checkpoint: str = ""


def format_evaluation(evaluation: Evaluation) -> str:
    """The line of an evaluation."""
    line = {
        "step": evaluation.step,
        "time": evaluation.time or time.time(),
        **({"checkpoint": evaluation.checkpoint} if evaluation.checkpoint else {}),
        **{name: _number(value) for name, value in evaluation.values.items()},
    }
    return json.dumps(line) + "\n"


def read_evaluations(directory: str) -> list[Evaluation]:
    """All evaluations so far, in the order of their steps; of a step that came twice the last."""
    return _read(f"{directory}/{EVALUATIONS}")


def read_training(directory: str) -> list[Evaluation]:
    """The curves of the training, in the same way."""
    return _read(f"{directory}/{TRAINING}")


def _read(path: str) -> list[Evaluation]:
    found: dict[int, Evaluation] = {}
    for line in read_text(path).splitlines():
        try:
            read = json.loads(line)
            step, at = int(read.pop("step")), float(read.pop("time"))
            checkpoint = str(read.pop("checkpoint", ""))
            values = {name: float("nan") if v is None else float(v) for name, v in read.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # A line may be half written.
        found[step] = Evaluation(step, values, at, checkpoint)
    return [found[step] for step in sorted(found)]


def read_text(path: str) -> str:
    """The contents of a file, local or remote; empty if there is none."""
    if "://" not in path:
        try:
            return Path(path).read_text(encoding="utf-8")
        except OSError:
            return ""
    import tensorflow as tf  # noqa: PLC0415

    try:
        with tf.io.gfile.GFile(path) as file:
            return str(file.read())
    except tf.errors.OpError:
        return ""


def is_better(
    value: float,
    than: float,
    metric: str,
    best: Literal["min", "max"] | None = None,
    min_delta: float = 0.0,
) -> bool:
    """Whether a figure beats another, by more than `min_delta`.

    >>> is_better(0.9, 0.8, "val_accuracy"), is_better(0.9, 0.8, "loss")
    (True, False)
    """
    if math.isnan(value) or math.isnan(than):
        return math.isnan(than) and not math.isnan(value)
    if (best or guess_best(metric)) == "max":
        return value > than + min_delta
    return value < than - min_delta


def guess_best(metric: str) -> Literal["min", "max"]:
    """Whether more or less is better, from what the field calls its metrics."""
    return "max" if _MORE_IS_BETTER & set(re.split(r"[^a-z0-9]+", metric.lower())) else "min"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
