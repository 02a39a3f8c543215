"""The metrics log: train.jsonl and eval.jsonl, which are read without TensorFlow."""

import json
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.layout import EVALUATION_LOG, TRAINING_LOG, read_text

Direction: TypeAlias = Literal["min", "max"]
"""Whether the lowest or the highest value of a metric is the best."""

# A metric whose name has one of these words is better when it is higher.
_HIGHER_IS_BETTER = {
    "accuracy", "acc", "auc", "precision", "recall", "f1", "iou", "io", "map", "bleu", "r2",
    "score", "dice", "ndcg", "mrr", "top",
}  # fmt: skip


@dataclass(frozen=True)
class MetricsEntry:
    """One line of the metrics log: the metrics at a step."""

    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    time: float = 0.0
    checkpoint: str = ""


def format_entry(entry: MetricsEntry) -> str:
    """Return an entry as a line of JSON; values that are not finite become null."""
    line = {
        "step": entry.step,
        "time": entry.time or time.time(),
        **({"checkpoint": entry.checkpoint} if entry.checkpoint else {}),
        **{name: v if math.isfinite(v) else None for name, v in entry.values.items()},
    }
    return json.dumps(line) + "\n"


def read_evaluations(directory: str) -> list[MetricsEntry]:
    """Read eval.jsonl in the order of steps. Of entries for the same step the last one counts."""
    return _read(f"{directory}/{EVALUATION_LOG}")


def read_training(directory: str) -> list[MetricsEntry]:
    """Read train.jsonl in the order of steps. Of entries for the same step the last one counts."""
    return _read(f"{directory}/{TRAINING_LOG}")


def _read(path: str) -> list[MetricsEntry]:
    found: dict[int, MetricsEntry] = {}
    for line in read_text(path).splitlines():
        try:
            read = json.loads(line)
            step, at = int(read.pop("step")), float(read.pop("time"))
            checkpoint = str(read.pop("checkpoint", ""))
            values = {name: float("nan") if v is None else float(v) for name, v in read.items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue  # The writer may not have finished the line.
        found[step] = MetricsEntry(step, values, at, checkpoint)
    return [found[step] for step in sorted(found)]


def is_better(
    value: float, than: float, metric: str, best: Direction | None = None, min_delta: float = 0.0
) -> bool:
    """Whether a value is better than another by more than `min_delta`.

    >>> is_better(0.9, 0.8, "val_accuracy"), is_better(0.9, 0.8, "loss")
    (True, False)
    """
    if math.isnan(value) or math.isnan(than):
        return math.isnan(than) and not math.isnan(value)
    if (best or guess_direction(metric)) == "max":
        return value > than + min_delta
    return value < than - min_delta


def find_best(
    entries: Iterable[MetricsEntry], metric: str, best: Direction | None = None
) -> MetricsEntry | None:
    """Return the first entry with the best value of a metric, or None if no entry has it."""
    leader: MetricsEntry | None = None
    for entry in entries:
        if metric in entry.values and (
            leader is None or is_better(entry.values[metric], leader.values[metric], metric, best)
        ):
            leader = entry
    return leader


def rank(
    evaluations: Sequence[MetricsEntry], metric: str, best: Direction | None = None
) -> list[MetricsEntry]:
    """Return the evaluations with a metric, the best first; an error if there is none."""
    ranked: list[MetricsEntry] = []
    left = list(evaluations)
    while (leader := find_best(left, metric, best)) is not None:
        ranked.append(leader)
        left.remove(leader)
    if not ranked:
        names = sorted({name for e in evaluations for name in e.values})
        raise ConfigurationError(
            f"no checkpoint in model_dir was evaluated with the metric {metric!r}: "
            + (f"there are {', '.join(names)}" if names else "run `phalanx evaluate` first")
        )
    return ranked


def guess_direction(metric: str) -> Direction:
    """Guess from a metric's name whether lower or higher is better."""
    return "max" if _HIGHER_IS_BETTER & set(re.split(r"[^a-z0-9]+", metric.lower())) else "min"
