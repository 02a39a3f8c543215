"""Remembers which launcher has which job, so that a job can be asked for by its name alone.

There is one small file for each job in the user's state directory. What becomes of the job is known
to its manager, not to this file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from phalanx.errors import JobError, LaunchError


@dataclass(frozen=True)
class JobRecord:
    """A job that was submitted, and what its launcher needs to find it again."""

    name: str
    launcher: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobStore:
    """The jobs that were submitted from here.

    >>> import tempfile
    >>> ledger = JobStore(Path(tempfile.mkdtemp()))
    >>> ledger.write(JobRecord("digits", "slurm", {"id": 7}))
    >>> ledger.read("digits").facts
    {'id': 7}
    """

    directory: Path

    @classmethod
    def of_user(cls, environ: Mapping[str, str] | None = None) -> JobStore:
        """The user's own, in XDG_STATE_HOME."""
        environ = os.environ if environ is None else environ
        home = environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        return cls(Path(home) / "phalanx/jobs")

    def names(self) -> list[str]:
        """The jobs there are."""
        return sorted(path.stem for path in self.directory.glob("*.json"))

    def write(self, record: JobRecord) -> None:
        """Remember a job."""
        path = self.directory / f"{record.name}.json"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            new.write_text(json.dumps(asdict(record), indent=1))
            new.replace(path)
        except OSError as error:
            raise LaunchError(f"the job cannot be remembered in {path}: {error.strerror}") from None

    def find(self, name: str) -> JobRecord | None:
        """The job of this name, if there is one."""
        try:
            text = (self.directory / f"{name}.json").read_text()
            return JobRecord(**json.loads(text))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise LaunchError(
                f"{self.directory / name}.json cannot be read ({error}): "
                f"remove it with phalanx cancel --forget {name}"
            ) from None

    def read(self, name: str) -> JobRecord:
        """The job of this name; that there is none is an error that names those there are."""
        record = self.find(name)
        if record is None:
            raise self._unknown(name)
        return record

    def forget(self, name: str) -> None:
        """Remove what is remembered; the job itself is not touched."""
        try:
            (self.directory / f"{name}.json").unlink()
        except FileNotFoundError:
            raise self._unknown(name) from None

    def _unknown(self, name: str) -> JobError:
        known = ", ".join(self.names())
        there = f"there are {known}" if known else "none was launched from here"
        return JobError(f"there is no job {name!r}: {there}")
