"""The process of one task: calls a pickled function, and writes its value or its error to a file.

It is started as `python -m phalanx.launch.functions.task FOLDER`.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from phalanx.cluster import detect
from phalanx.cluster.spec import Task
from phalanx.errors import JobError, PhalanxError
from phalanx.launch.private_files import write_atomically
from phalanx.launch.termination import deciding_tasks

CALL, VALUE = "call.pickle", "value.pickle"


def error_file(task: Task) -> str:
    return f"{task}.error"


def pickle_value(value: object, name: str) -> bytes:
    """Pickle a value, including code of the main program; `name` is for the error message."""
    try:
        import cloudpickle  # noqa: PLC0415
    except ModuleNotFoundError:
        raise JobError("launch_local needs cloudpickle: pip install 'phalanx[notebook]'") from None
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise JobError(
            f"{name} cannot be sent between processes: {error}. Create or open inside of the "
            "function what belongs to one process, and return plain data"
        ) from error


def main(folder: Path) -> int:
    task = detect().task
    try:
        path, call = pickle.loads((folder / CALL).read_bytes())
        sys.path[:] = list(dict.fromkeys([*sys.path, *path]))
        function, arguments = pickle.loads(call)
        value = function(*arguments)
        if task == deciding_tasks(list_tasks())[0]:
            data = pickle_value(_without_model(value), "what the function returned")
            write_atomically(folder / VALUE, data)
        return 0
    except SystemExit as end:
        if end.code in (None, 0):
            return 0
        text = f"it ended with {end.code!r}"
    except PhalanxError as error:
        text = f"{type(error).__name__}: {error}"
        _write_error(folder, task, text)
        return error.exit_code
    except BaseException as error:
        # Without this frame: the traceback begins with the user's function.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    _write_error(folder, task, text)
    return 1


def list_tasks() -> list[Task]:
    """Return the tasks of this process's cluster; a single process is its chief."""
    config = detect()
    return list(config.cluster.addresses) or [config.task]


def _write_error(folder: Path, task: Task, text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    write_atomically(folder / error_file(task), text.encode())


def _without_model(value: Any) -> Any:
    """Leave out the model of a `phalanx.Result`, which the checkpoint has."""
    training = sys.modules.get("phalanx.train.task_run")
    if training is not None and isinstance(value, training.Result):
        return dataclasses.replace(value, model=None, history=None)
    return value


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
