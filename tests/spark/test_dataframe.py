"""Features and labels of a batch."""

from __future__ import annotations

from phalanx.spark.dataframe import select


def test_select_features_and_label() -> None:
    batch = {"a": 1, "b": 2, "y": 3}
    assert select(batch, "a", "y") == (1, 3)
    assert select(batch, ["a", "b"], "y") == ({"a": 1, "b": 2}, 3)
    assert select(batch, ["b"], None) == {"b": 2}
