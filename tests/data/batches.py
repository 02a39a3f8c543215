"""Checks of batches that several tests share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phalanx.data import Pipeline


def read_ids(dataset: Iterable[dict[str, Any]]) -> list[int]:
    return [int(number) for batch in dataset for number in batch["id"]]


def check_reads_200_ids(pipeline: Pipeline) -> None:
    """The source has the ids 0 to 199, and a seed shuffles them."""
    for seed in (None, 5):
        found = read_ids(Pipeline(pipeline.source, seed).dataset(7, epochs=1))
        assert sorted(found) == list(range(200))
        assert (found == sorted(found)) == (seed is None)
