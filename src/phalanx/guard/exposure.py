"""Whether this process may start TensorFlow's servers: only guarded, if the guard is required."""

from collections.abc import Mapping

from phalanx.errors import JobError
from phalanx.guard.library import SWITCH, is_active, is_off, is_required


def describe_exposure(environ: Mapping[str, str]) -> str:
    """Return a warning for a process without the guard; a JobError if the guard is required."""
    if is_active() or is_off(environ):
        return ""
    if is_required(environ):
        raise JobError(
            f"{SWITCH} is required, and the guard is not active in this process: start the program "
            "with `phalanx guard -- python ...`, `phalanx run` or `phalanx launch`"
        )
    return (
        "every host of the network can connect to TensorFlow's server in this process, and run "
        "what it likes: start the program with `phalanx guard -- python ...` (see SECURITY.md)"
    )
