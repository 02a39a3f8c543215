"""The Python processes that Spark keeps for its tasks and plans."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """Take what is loaded by now out of the collector's sight.

    Spark has a worker collect garbage after all it does: with Arrow, pandas and the like in memory
    that takes longer than to read a small file.
    """
    gc.collect()
    gc.freeze()
