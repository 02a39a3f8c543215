"""Damage to the newest checkpoint of a run, as by a disk or a host that has lost what it wrote."""

import os
from pathlib import Path


def count_checkpoints(newest: str) -> int:
    """Return how many checkpoints there are beside the newest one, with it."""
    if not newest or "://" in newest:
        return 0
    name = Path(newest).name.rpartition("-")[0]
    return len(list(Path(newest).parent.glob(f"{name}-*.index")))


def flip_bit(newest: str) -> None:
    """Change a bit in the middle of the largest file of a checkpoint."""
    file = _find_largest(newest)
    middle = file.stat().st_size // 2
    with file.open("r+b") as opened:
        opened.seek(middle)
        [byte] = opened.read(1)
        opened.seek(middle)
        opened.write(bytes([byte ^ 1]))


def truncate(newest: str) -> None:
    """Cut the largest file of a checkpoint in half."""
    file = _find_largest(newest)
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def empty(newest: str) -> None:
    """Leave the files of a checkpoint without content."""
    for file in _find_files(newest):
        os.truncate(file, 0)


def delete(newest: str) -> None:
    """Delete the files of a checkpoint."""
    for file in _find_files(newest):
        file.unlink()


def _find_files(newest: str) -> list[Path]:
    return list(Path(newest).parent.glob(f"{Path(newest).name}.*"))


def _find_largest(newest: str) -> Path:
    files = Path(newest).parent.glob(f"{Path(newest).name}.data-*")
    return max(files, key=lambda file: file.stat().st_size)
