"""The state of an elastic job, in files of its log directory: its members, and requests.

The supervisor writes `membership.json` and reads `scale.json`, which `phalanx scale` writes. Files
of other users count as none: the directory may be one that others can write.
"""

import contextlib
import json
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from phalanx.errors import JobError, LaunchError
from phalanx.launch.private_files import read_private, write_atomically

_MEMBERSHIP = "membership.json"
_REQUEST = "scale.json"
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Membership:
    """The trainers of an elastic job.

    Attributes:
        host: The name of the host on which a process supervises the job.
        pid: That process.
        generation: The number of the current generation.
        members: The slots of its trainers, the chief's first.
        minimum: The smallest number of workers.
        maximum: The largest number of workers.
        wanted: The number of workers that the job should have.
        chiefs: How many chiefs it has besides: 1 or 0.
    """

    host: str
    pid: int
    generation: int
    members: tuple[str, ...]
    minimum: int
    maximum: int
    wanted: int
    chiefs: int

    def count_trainers(self, workers: int) -> int:
        """Return how many trainers the job has with so many workers: a chief is one more."""
        return workers + self.chiefs

    def may_run(self) -> bool:
        """Whether the supervisor still runs, as far as that can be seen from this host."""
        is_visible = self.host == socket.gethostname() and Path("/proc/self").exists()
        return not is_visible or Path(f"/proc/{self.pid}").exists()

    @classmethod
    def load(cls, content: Any) -> Self:
        found = cls(**{**content, "members": tuple(content["members"])})
        texts = ("host", "members")
        numbers = {name: value for name, value in asdict(found).items() if name not in texts}
        if wrong := [name for name, value in numbers.items() if type(value) is not int]:
            raise ValueError(f"{', '.join(wrong)} must be numbers")
        return found


def write_membership(directory: Path, membership: Membership) -> None:
    """Write the members, if the directory can be written; the job does not depend on it."""
    with contextlib.suppress(OSError):
        write_atomically(directory / _MEMBERSHIP, json.dumps(asdict(membership)).encode())


def remove_membership(directory: Path) -> None:
    """Remove the files of a job that has ended."""
    for name in (_MEMBERSHIP, _REQUEST):
        with contextlib.suppress(OSError):
            (directory / name).unlink()


def read_membership(directory: Path) -> Membership:
    """Read the members of a running job.

    Raises:
        JobError: No elastic job runs there.
    """
    try:
        membership = Membership.load(json.loads(read_private(directory / _MEMBERSHIP)))
    except FileNotFoundError:
        raise JobError(
            f"no elastic job runs in {directory}: it has ended, or was started without "
            "--min-workers and --max-workers"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LaunchError(f"{directory / _MEMBERSHIP} cannot be read: {error}") from None
    if not membership.may_run():
        raise JobError(f"the job in {directory} has ended without a result: start it again")
    return membership


def take_request(directory: Path, possible: range) -> int | None:
    """Return the number of workers that was requested since the last call; None if none was.

    A number that is not possible counts as none: `phalanx scale` does not request it.
    """
    path = directory / _REQUEST
    try:
        workers = json.loads(read_private(path))["workers"]
        path.unlink()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return workers if type(workers) is int and workers in possible else None


def request_workers(directory: Path, workers: int, timeout: float) -> Membership:
    """Ask a job for another number of workers, and wait until it has taken the request.

    Raises:
        JobError: No elastic job runs there, or it cannot have so many workers.
        LaunchError: The job does not answer.
    """
    found = read_membership(directory)
    if not found.minimum <= workers <= found.maximum:
        raise JobError(
            f"--workers is {workers}, but the job was started for {found.minimum} to "
            f"{found.maximum} (--min-workers, --max-workers)"
        )
    request = directory / _REQUEST
    try:
        write_atomically(request, json.dumps({"workers": workers}).encode())
    except OSError as error:
        raise LaunchError(f"{request} cannot be written: {error.strerror}") from None
    deadline = time.monotonic() + timeout
    while request.exists():
        if time.monotonic() > deadline:
            with contextlib.suppress(OSError):
                request.unlink()
            raise LaunchError(f"the job in {directory} has not answered for {timeout:g} s")
        time.sleep(_POLL_SECONDS)
    return found


def wait_for_generation(directory: Path, after: int, timeout: float) -> Membership | None:
    """Wait for the generation after this one; None if it has not come in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if (found := read_membership(directory)).generation > after:
            return found
        time.sleep(_POLL_SECONDS)
    return None


def find_directory(job: str, start: Path) -> Path | None:
    """Return the log directory of a running job, by its path or by the name of its program."""
    if (start / job / _MEMBERSHIP).exists():
        return start / job
    found = [path.parent for path in (start / "phalanx-logs").glob(f"*/{_MEMBERSHIP}")]
    # A name is followed by a date, a time and four digits.
    found = [path for path in found if path.name.rsplit("-", 3)[0] == job and _is_running(path)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _is_running(directory: Path) -> bool:
    try:
        read_membership(directory)
    except JobError:
        return False
    return True
