"""The lease of a model_dir: one job writes there at a time.

The chief holds the file `.phalanx-lease` in its model_dir and renews it every few seconds. A second
job is refused. The lease of a dead job is taken over: at once by another start of the same job, or
on the machine where the owner's process is gone; otherwise when the file has not changed for
`EXPIRY_SECONDS`, by the clock of whoever waits, so that the clocks of hosts need not agree.

Only creating, replacing, reading and touching one file is needed, so it works on NFS and gs:// too.
"""

import contextlib
import hashlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.cluster.job_environment import has_run_id, read_run_id
from phalanx.cluster.machine_identity import identify_machine
from phalanx.errors import ConfigurationError, LeaseError
from phalanx.train.model_dir.lease_file import LeaseFile, open_lease_file

LOG = logging.getLogger("phalanx")

RENEW_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Owner:
    """Who holds a lease."""

    token: str
    """Of this acquisition alone."""
    job: str
    """Of all starts of a job; empty for a process that belongs to none."""
    host: str
    machine: str
    """Tells whether a process id can be looked up here."""
    pid: int
    started: str
    """When the process started, because process ids are used again."""

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str], addresses: Iterable[str] = ()) -> "Owner":
        """Describe this process, whose job has tasks at these addresses."""
        return cls(
            uuid.uuid4().hex,
            _identify_job(environ, addresses),
            socket.gethostname(),
            identify_machine(),
            os.getpid(),
            _start_of(os.getpid()),
        )

    def is_dead_here(self, machine: str) -> bool:
        """Whether the owner was a process of this machine that is gone."""
        return bool(machine) and self.machine == machine and _start_of(self.pid) != self.started

    def is_alive_here(self, machine: str) -> bool:
        return bool(machine) and self.machine == machine and _start_of(self.pid) == self.started

    def describe(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """This process's lease of a directory, renewed by a thread until it is released."""

    def __init__(self, file: LeaseFile, owner: Owner, directory: str) -> None:
        self._file = file
        self._owner = owner
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="phalanx-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise an error if another job has taken the lease over."""
        found = _parse(self._file.read())
        if found is not None and found.token != self._owner.token:
            raise LeaseError(
                f"model_dir {self._directory} was taken over by {found.describe()}, because this "
                f"process gave no sign for {EXPIRY_SECONDS:.0f} s: it must not write there any more"
            )

    def renew(self) -> None:
        """Show that this process is alive.

        Raises:
            LeaseError: Another job has taken the lease over.
        """
        self.check()
        self._file.renew(_render(self._owner))

    def release(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(RENEW_SECONDS)
        with contextlib.suppress(Exception):
            found = _parse(self._file.read())
            if found is None or found.token == self._owner.token:
                self._file.remove()

    def _keep(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            try:
                self.renew()
            except LeaseError as error:
                LOG.error("%s", error)
                return
            except Exception as error:
                LOG.warning("the lease of %s was not renewed: %s", self._directory, error)


_held: dict[str, Lease] = {}


@contextlib.contextmanager
def hold_lease(directory: str | None, addresses: Iterable[str] = ()) -> Iterator[None]:
    """Hold the lease of a model_dir while the block runs.

    Args:
        directory: The model_dir. Without one, nothing is done.
        addresses: Those of the tasks of this job, by which another start of the job is known.

    Raises:
        ConfigurationError: Another job, which is alive, holds it.
    """
    if not directory:
        yield
        return
    owner = Owner.of_this_process(os.environ, addresses)
    file = open_lease_file(directory)
    acquire(file, owner, directory)
    lease = Lease(file, owner, directory)
    lease.start()
    _held[directory] = lease
    try:
        yield
    finally:
        del _held[directory]
        lease.release()


def check_lease(directory: str) -> None:
    """Raise an error if this process held the lease of a directory and has lost it.

    Raises:
        LeaseError: Another job has it.
    """
    if (lease := _held.get(directory)) is not None:
        lease.check()


def acquire(
    file: LeaseFile,
    owner: Owner,
    directory: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take the lease, or wait until it has expired; raise an error if its owner is alive."""
    seen: tuple[str, int] | None = None
    seen_at = clock()
    while True:
        text, version = file.read_version()
        holder = _parse(text)
        if text == "" and file.create(_render(owner)):
            reason = ""
        elif holder is not None and holder.job and holder.job == owner.job:
            reason = "an earlier start of this job held it"
        elif holder is not None and holder.is_dead_here(owner.machine):
            reason = f"{holder.describe()} is dead"
        elif (holder is not None and holder.is_alive_here(owner.machine)) or (
            seen is not None and (text, version) != seen
        ):
            raise _refuse(directory, holder)
        elif seen is None:
            who = holder.describe() if holder else "an unknown process"
            LOG.warning(
                "%s is held by %s: waiting up to %.0f s to see whether it is alive",
                directory, who, EXPIRY_SECONDS,
            )  # fmt: skip
            seen = (text, version)
            seen_at = clock()
            continue
        elif clock() - seen_at < EXPIRY_SECONDS:
            sleep(_POLL_SECONDS)
            continue
        else:
            reason = f"its owner gave no sign for {EXPIRY_SECONDS:.0f} s"
        if reason:
            file.replace(_render(owner))
        if not reason and not file.needs_settling:
            return
        # Of several that take it over at once, the last one to write has it.
        sleep(file.settle_seconds)
        found = _parse(file.read())
        if found is not None and found.token == owner.token:
            if reason:
                LOG.info("took over the lease of %s: %s", directory, reason)
            return
        seen = None


def _refuse(directory: str, holder: Owner | None) -> ConfigurationError:
    who = f"another job ({holder.describe()})" if holder else "another job"
    return ConfigurationError(
        f"model_dir {directory} is in use by {who}: choose another model_dir, or end that job first"
    )


def _render(owner: Owner) -> str:
    return json.dumps(asdict(owner))


def _parse(text: str) -> Owner | None:
    try:
        return Owner(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None


def _identify_job(environ: Mapping[str, str], addresses: Iterable[str]) -> str:
    # The addresses of an elastic job change.
    parts = [read_run_id(environ), *([] if has_run_id(environ) else sorted(addresses))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32] if any(parts) else ""


def _start_of(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; empty if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
