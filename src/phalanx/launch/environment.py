"""Variables that every task gets, whatever starts it."""

from __future__ import annotations

from collections.abc import Mapping

# oneDNN nearly doubles the speed of training on many CPUs, but is off by default.
DEFAULTS: Mapping[str, str] = {"TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONUNBUFFERED": "1"}


def thread_variables(threads: int) -> dict[str, str]:
    """What keeps a task to this many threads.

    >>> thread_variables(1)["TF_NUM_INTEROP_THREADS"]
    '2'
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        # With a single one, a TensorFlow server that waits for another never gets to answer.
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
    }
