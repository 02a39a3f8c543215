from __future__ import annotations

from pathlib import Path

import numpy as np

from phalanx.data import Pipeline
from phalanx.data.datasets import make_synthetic


def test_synthetic_classes_can_be_distinguished(tmp_path: Path) -> None:
    counts = make_synthetic(tmp_path, count=2000, classes=4, size=16, seed=3, shards=2)
    assert counts == {"train": 2000, "eval": 400}

    def load(name: str) -> tuple[np.ndarray, np.ndarray]:
        pipeline = Pipeline.from_records(tmp_path / f"{name}-*", raw={"image": "uint8"})
        [(columns, _)] = pipeline.batches(2000, epochs=1)
        images = np.asarray(columns["image"], np.float32).reshape(-1, 3, 16, 16)
        # Stripes of any phase have the same spectrum.
        spectrum = np.abs(np.fft.rfft2(images)).reshape(len(images), -1)
        return spectrum, np.asarray(columns["label"])

    train, labels = load("train")
    means = np.stack([train[labels == label].mean(axis=0) for label in range(4)])
    found, expected = load("eval")
    nearest = ((found[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == expected).mean() > 0.9
    assert np.bincount(expected).tolist() == [100] * 4
