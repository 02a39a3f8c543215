"""What every task is to do: a function and its arguments, as bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.errors import JobError

# The files of a task's folder: what to do, and what came of it.
CALL, VALUE, ERROR = "call", "value", "error.json"


@dataclass(frozen=True)
class Call:
    """A function and what it is called with."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]


def pack(what: Any, name: str) -> bytes:
    """As bytes, code of the main program included."""
    try:
        import cloudpickle  # noqa: PLC0415
    except ImportError:
        raise JobError("cloudpickle is not installed: pip install 'phalanx[spark]'") from None
    try:
        return cloudpickle.dumps(what)  # type: ignore[no-any-return]
    except Exception as error:
        raise JobError(
            f"{name} cannot be sent between the driver and its tasks: {error}. Make or open inside "
            "the function what belongs to one process, and return plain data"
        ) from error


def unpack(data: bytes) -> Any:
    """What was packed."""
    import cloudpickle  # noqa: PLC0415

    return cloudpickle.loads(data)


def train_experiment(experiment: Any, config: Any, hooks: Any) -> Any:
    """`phalanx.run`; the model stays where it is, for its weights are in the checkpoint."""
    from phalanx.train.runner import run  # noqa: PLC0415

    return dataclasses.replace(run(experiment, config, hooks=hooks), model=None)
