"""The jobs that this user has submitted: one file for each, which says where the job runs."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from phalanx.errors import JobError, LaunchError
from phalanx.launch.private_files import make_private_directory, write_atomically


@dataclass(frozen=True)
class JobRecord:
    """A submitted job: its backend, and what the launcher's `attach` needs to find it again."""

    name: str
    launcher: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobStore:
    directory: Path

    @classmethod
    def of_user(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return the store of this user, below XDG_STATE_HOME."""
        environ = os.environ if environ is None else environ
        home = environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        return cls(Path(home) / "phalanx/jobs")

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.json"))

    def write(self, record: JobRecord) -> None:
        path = self._path(record.name)
        try:
            make_private_directory(self.directory)
            self.directory.chmod(0o700)
            write_atomically(path, json.dumps(asdict(record), indent=1).encode())
        except OSError as error:
            raise LaunchError(f"the job cannot be recorded in {path}: {error.strerror}") from None

    def find(self, name: str) -> JobRecord | None:
        try:
            text = self._path(name).read_text()
            return JobRecord(**json.loads(text))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise LaunchError(
                f"{self.directory / name}.json cannot be read ({error}): "
                f"remove it with phalanx cancel --forget {name}"
            ) from None

    def read(self, name: str) -> JobRecord:
        """Return the job's record; raise a JobError that lists the known jobs if there is none."""
        record = self.find(name)
        if record is None:
            raise self._unknown(name)
        return record

    def forget(self, name: str) -> None:
        """Remove the job's record; the job itself is not touched."""
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise self._unknown(name) from None

    def _path(self, name: str) -> Path:
        if name != Path(name).name or len(name) > 100 or "\0" in name:
            raise self._unknown(name)
        return self.directory / f"{name}.json"

    def _unknown(self, name: str) -> JobError:
        known = ", ".join(self.names())
        found = f"there are {known}" if known else "none was launched from here"
        return JobError(f"there is no job {name!r}: {found}")
