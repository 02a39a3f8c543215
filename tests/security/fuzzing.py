"""How many inputs the fuzz tests (fuzz_*.py) try: few in the suite, 100,000 each by `make fuzz`.

    @fuzz
    @given(binary())
    def test_any_message_is_answered(data: bytes) -> None:
        for message in vary(data, [b"{", b"\\n"]): ...

Drawing a well-formed input takes longer than most tests of it, so each one is tried together with
mutations. The suite tries the same inputs in each run, `make fuzz` new ones.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import AnyStr

from hypothesis import HealthCheck, Phase, settings

_COUNT = int(os.environ.get("PHALANX_FUZZ", "0"))
_IN_SUITE = 200
_VARIATIONS = 5

fuzz = settings(
    max_examples=(_COUNT or _IN_SUITE) // _VARIATIONS,
    derandomize=not _COUNT,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
"""The settings of a fuzz test, as a decorator."""


def vary(data: AnyStr, pieces: Sequence[AnyStr]) -> Iterator[AnyStr]:
    """Yield an input, then mutations of it: parts are dropped, repeated, or replaced by a piece."""
    random = Random(repr(data))
    yield data
    for _ in range(_VARIATIONS - 1):
        start = random.randint(0, len(data))
        end = min(len(data), start + random.choice([0, 1, 2, 8]))
        part = random.choice([data[:0], data[start:end] * 2, random.choice(pieces)])
        data = data[:start] + part + data[end:]
        yield data


def replace_file(path: Path, data: bytes) -> None:
    """Write a new file: to truncate an old one makes the file system write it to the disk."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
