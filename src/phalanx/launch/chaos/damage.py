"""Damage to the newest checkpoint of a run, as by a disk or a host that has lost what it wrote."""

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


def _find_largest(newest: str) -> Path:
    files = Path(newest).parent.glob(f"{Path(newest).name}.data-*")
    return max(files, key=lambda file: file.stat().st_size)
