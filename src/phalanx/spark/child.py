"""The process of one task: calls the user's function, and leaves behind what came of it.

A Python worker of Spark serves many tasks one after the other, with one thread for each; TensorFlow
wants a process of its own. Started as `python -m phalanx.spark.child FOLDER`; FOLDER has the call.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from phalanx.errors import (
    ConfigurationError,
    Interrupted,
    JobError,
    PeerError,
    PhalanxError,
    TrainingError,
)
from phalanx.spark.call import CALL, ERROR, VALUE, Call, pack, unpack
from phalanx.spark.job_state import Cause


def main(folder: Path) -> int:
    """Make the call that is in the folder, and leave its value or its error there."""
    try:
        call = _load(folder / CALL)
        value = pack(call.function(**call.arguments), "what the function returned")
    except SystemExit as end:
        if end.code in (None, 0):
            value = pack(None, "nothing")
        else:
            return _fail(folder, f"it ended with {end.code!r}", Cause.OWN, False)
    except PhalanxError as error:
        is_final = isinstance(error, ConfigurationError)
        return _fail(folder, str(error), _cause(error), is_final, error.exit_code)
    except BaseException as error:
        # Everything above the user's own code says nothing about their mistake.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, trace))
        return _fail(folder, text.rstrip(), Cause.OWN, False)
    _write(folder / VALUE, value)
    return 0


def _load(path: Path) -> Call:
    try:
        call = unpack(path.read_bytes())
    except ModuleNotFoundError as error:
        raise JobError(
            f"there is no module {error.name!r} on the executors: install it there, or send it "
            "with spark.addArtifact(..., pyfile=True) or sparkContext.addPyFile(...)"
        ) from None
    assert isinstance(call, Call)
    return call


def _cause(error: PhalanxError) -> Cause:
    if isinstance(error, PeerError | Interrupted):
        return Cause.PEER
    return Cause.TOLD if isinstance(error, TrainingError) else Cause.OWN


def _fail(folder: Path, text: str, cause: Cause, is_final: bool, code: int = 1) -> int:
    told = {"text": text, "cause": cause, "is_final": is_final}
    _write(folder / ERROR, json.dumps(told).encode())
    return code


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
