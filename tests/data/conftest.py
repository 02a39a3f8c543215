from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phalanx.records import write_examples


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """5000 examples in fewer files than workers, of different sizes."""
    numbers = np.arange(5000)
    for name, part in (("a.tfrecord", numbers[:300]), ("b.tfrecord", numbers[300:])):
        pixels = [bytes([n % 251] * 12) for n in part]
        write_examples(tmp_path / name, {"id": part, "pixels": pixels})
    return [str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")]
