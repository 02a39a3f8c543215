"""The predictions of a model: which of them, and those of each example."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def choose_predictions(predictions: Any, keys: str | Sequence[str] | None) -> Any:
    """Return the predictions with these names; all if there are none."""
    if not keys:
        return predictions
    if not isinstance(predictions, Mapping):
        raise ValueError("predict_keys is set, but the predictions are a tensor without names")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    missing = [key for key in wanted if key not in predictions]
    if missing:
        raise ValueError(f"there is no prediction {missing[0]!r}: there are {sorted(predictions)}")
    return {key: predictions[key] for key in wanted}


def split_batch(batch: Any) -> Iterator[Any]:
    """Yield the predictions of each example of a batch."""
    if not isinstance(batch, Mapping):
        yield from batch
        return
    counts = {key: np.shape(each)[0] for key, each in batch.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"the predictions have different lengths, {counts}: set yield_single_examples=False"
        )
    for index in range(next(iter(counts.values()))):
        yield {key: each[index] for key, each in batch.items()}
