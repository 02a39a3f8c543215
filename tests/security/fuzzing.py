"""How many inputs the fuzz tests (fuzz_*.py) try: few in the suite, 100,000 each by `make fuzz`.

    @fuzz
    @given(binary())
    def test_any_message_is_answered(data: bytes) -> None: ...

The suite tries the same inputs in each run, `make fuzz` new ones. PHALANX_FUZZ sets the number.
"""

import os

from hypothesis import HealthCheck, settings

_COUNT = int(os.environ.get("PHALANX_FUZZ", "0"))
_IN_SUITE = 100

fuzz = settings(
    max_examples=_COUNT or _IN_SUITE,
    derandomize=not _COUNT,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""The settings of a fuzz test, as a decorator."""
