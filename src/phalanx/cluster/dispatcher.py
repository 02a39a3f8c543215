"""PHALANX_DATA_SERVICE: where the dispatcher of tf.data service is, if the job has one."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "PHALANX_DATA_SERVICE"


def find_dispatcher(environ: Mapping[str, str]) -> str | None:
    """The dispatcher's address, as the launcher has set it.

    >>> find_dispatcher({"PHALANX_DATA_SERVICE": "data:5050"})
    'data:5050'
    """
    return environ.get(VARIABLE) or None
