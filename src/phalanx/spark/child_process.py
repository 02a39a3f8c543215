"""The process of one task: calls the user's function, and writes its value or error to a file.

A Python worker of Spark serves many tasks one after the other, each in a thread, but TensorFlow
needs a process of its own. It is started as `python -m phalanx.spark.child_process FOLDER`; FOLDER
contains the pickled function.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import errors
from phalanx.launch.private_files import write_atomically
from phalanx.spark.barrier_context import restore_context
from phalanx.spark.job_controller import Cause

if TYPE_CHECKING:
    from phalanx.train.config import RunConfig
    from phalanx.train.experiment import Experiment
    from phalanx.train.hooks.base import Hook
    from phalanx.train.task_run import Result

# The files of a task's folder: the function, Spark's context, and the function's value or error.
FUNCTION, CONTEXT, VALUE, ERROR = "function", "context.json", "value", "error.json"


def serialize(value: object, name: str) -> bytes:
    """Pickle a value, including code of the main program; `name` is for the error message."""
    try:
        import cloudpickle  # noqa: PLC0415
    except ImportError:
        raise errors.JobError(
            "cloudpickle is not installed: pip install 'phalanx[spark]'"
        ) from None
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        what = f"{name} cannot be sent between the driver and its tasks: {error}"
        fix = (
            "Create or open inside the function what belongs to one process, and return plain data"
        )
        raise errors.JobError(f"{what}. {fix}") from error


def deserialize(data: bytes) -> object:
    import cloudpickle  # noqa: PLC0415

    value: object = cloudpickle.loads(data)
    return value


def train_experiment(experiment: Experiment, config: RunConfig, hooks: Sequence[Hook]) -> Result:
    """Call `phalanx.run`, and return its result without the model, which the checkpoint has."""
    from phalanx.train.runner import run  # noqa: PLC0415

    return dataclasses.replace(run(experiment, config, hooks=hooks), model=None, history=None)


def main(folder: Path) -> int:
    try:
        restore_context((folder / CONTEXT).read_text())
        function = _load(folder / FUNCTION)
        value = serialize(function(), "what the function returned")
    except SystemExit as end:
        if end.code not in (None, 0):
            return _fail(folder, f"it ended with {end.code!r}", Cause.ORIGIN, False)
        value = serialize(None, "nothing")
    except errors.PhalanxError as error:
        is_final = isinstance(error, errors.ConfigurationError)
        return _fail(folder, str(error), _cause(error), is_final, error.exit_code)
    except BaseException as error:
        # Without this frame: the user's traceback begins with the user's code.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, trace))
        return _fail(folder, text.rstrip(), Cause.ORIGIN, False)
    write_atomically(folder / VALUE, value)
    return 0


def _load(path: Path) -> Callable[[], object]:
    try:
        function = deserialize(path.read_bytes())
    except ModuleNotFoundError as error:
        what = f"there is no module {error.name!r} on the executors"
        send = "spark.addArtifact(..., pyfile=True) or sparkContext.addPyFile(...)"
        raise errors.JobError(f"{what}: install it there, or send it with {send}") from None
    assert callable(function)
    return function


def _cause(error: errors.PhalanxError) -> Cause:
    if isinstance(error, errors.PeerError | errors.Interrupted):
        return Cause.PEER
    return Cause.REPORTED if isinstance(error, errors.TrainingError) else Cause.ORIGIN


def _fail(folder: Path, text: str, cause: Cause, is_final: bool, code: int = 1) -> int:
    failure = {"text": text, "cause": cause, "is_final": is_final}
    write_atomically(folder / ERROR, json.dumps(failure).encode())
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
