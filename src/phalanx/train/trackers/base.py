"""What a tracker must be able to do, and the parameters of a run."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig

Parameters = Mapping[str, bool | int | float | str]

_SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)


class Tracker(Protocol):
    """Records one run of a job."""

    name: str

    def open(self, run_id: str | None, run_name: str, parameters: Parameters) -> str:
        """Begin a run, or go on with the one of this ID; return its ID."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def add_artifact(self, path: Path) -> None:
        """Store a file, or a directory under its own name."""

    def close(self, succeeded: bool) -> None: ...


def collect_parameters(config: RunConfig, argv: Sequence[str]) -> Parameters:
    """Return the settings of a run, and the other flags of its program.

    Flags whose names tell that they are secrets are left out.

    >>> found = collect_parameters(RunConfig(seed=7), ["--layers=20", "--fast", "--api-key", "x"])
    >>> found["seed"], found["layers"], found["fast"], "api_key" in found
    (7, '20', 'true', False)
    """
    found: dict[str, bool | int | float | str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is not None:
            found[field.name] = value if isinstance(value, bool | int | float) else str(value)
    words = list(argv)
    for number, word in enumerate(words):
        if not re.match(r"--[A-Za-z]", word):
            continue
        flag, equals, value = word.removeprefix("--").partition("=")
        following = words[number + 1] if number + 1 < len(words) else "--"
        if not equals:
            value = "true" if following.startswith("--") else following
        name = flag.replace("-", "_")
        if name not in RunConfig.__dataclass_fields__ and not _SECRET.search(name):
            found[name] = value
    return found


def missing_library(tracker: str, error: ModuleNotFoundError) -> ConfigurationError:
    """Return the error for a tracker whose library is not installed."""
    return ConfigurationError(
        f"the hook {tracker} needs {error.name}: pip install 'phalanx[{tracker}]'"
    )
