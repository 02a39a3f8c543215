"""Write numbered records for data workers, and check which task read which of them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from phalanx.records import write_examples

PROGRAM = Path(__file__).parent / "programs/read_served.py"


def write_numbers(directory: Path) -> None:
    """Write 1000 numbers to four files, and copy the program that reads them."""
    shutil.copy(PROGRAM, directory)
    for part in range(4):
        numbers = np.arange(part * 250, (part + 1) * 250)
        pixels = [bytes([n % 200] * 4) for n in numbers]
        write_examples(directory / f"{part}.tfrecord", {"id": numbers, "pixels": pixels})


def check_numbers(directory: Path, *tasks: str) -> None:
    """Check that each epoch had each number once, and that clusters contain only these tasks."""
    seen = [json.loads((directory / f"{task}.json").read_text()) for task in tasks]
    for number in range(2):
        assert Counter(n for task in seen for n in task["passes"][number]) == Counter(range(1000))
    assert all(task["cluster"] == sorted(tasks) for task in seen)
