"""The status file of a run: the chief writes it, whoever watches the run reads it."""

import json
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Self

from phalanx.cluster.job_environment import read_run_id
from phalanx.train.model_dir.layout import STATUS, read_text

HEARTBEAT_SECONDS = 15.0


class State(StrEnum):
    """The state of a run. The last two are never written."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    SILENT = "silent"
    """RUNNING, but without a heartbeat."""
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Self:
        # A newer version may write other states.
        return cls.UNKNOWN


@dataclass(frozen=True)
class Status:
    """The contents of the status file, under the same names."""

    state: State
    step: int = 0
    reason: str = ""
    time: float = 0.0
    job: str = ""
    """The run id of the job that wrote it, from its launcher."""


def write_status(directory: str, status: Status) -> None:
    """Replace the status file atomically."""
    import tensorflow as tf  # noqa: PLC0415

    path = f"{directory}/{STATUS}"
    with tf.io.gfile.GFile(path + ".new", "w") as file:
        job = status.job or read_run_id()
        written = replace(status, time=status.time or time.time(), job=job)
        file.write(json.dumps(asdict(written)))
    tf.io.gfile.rename(path + ".new", path, overwrite=True)


def read_status(directory: str) -> Status | None:
    """Read the status file; None if there is none, or none that can be read."""
    try:
        found = json.loads(read_text(f"{directory}/{STATUS}"))
        state, reason = State(found["state"]), str(found["reason"])
        job = str(found.get("job", ""))
        return Status(state, int(found["step"]), reason, float(found["time"]), job)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
