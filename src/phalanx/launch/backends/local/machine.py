"""The facts about this machine that a local plan depends on."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """What there is to share out among the tasks of one job."""

    processors: int
    gpus: tuple[str, ...]
    environ: Mapping[str, str]
    python: str

    @classmethod
    def inspect(cls) -> Machine:
        """This machine, as far as this process may use it."""
        environ = dict(os.environ)
        return cls(
            processors=_count_processors(),
            gpus=_find_gpus(environ, Path("/dev")),
            environ=environ,
            python=sys.executable,
        )


def _count_processors(control_group: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Those this process may run on, and no more than a container's limit."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        quota, period = control_group.read_text().split()
        limit = int(quota) / int(period)
    except (OSError, ValueError):
        return count
    return max(1, min(count, round(limit)))


def _find_gpus(environ: Mapping[str, str], devices: Path) -> tuple[str, ...]:
    """The GPUs named by CUDA_VISIBLE_DEVICES if that is set, otherwise all that have a device."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1"))
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return tuple(sorted((match[1] for match in numbers if match), key=int))
