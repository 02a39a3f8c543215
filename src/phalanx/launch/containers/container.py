"""What a task needs if it runs in a container: an image, mounts, labels, a key for Google Cloud."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from phalanx.errors import JobError

PORT = 2222
CREDENTIALS_PATH = "/var/run/phalanx/credentials.json"
CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


class MountKind(Enum):
    """Where what is mounted comes from."""

    HOST = "host"
    VOLUME = "volume"
    NFS = "nfs"


@dataclass(frozen=True)
class Mount:
    """A directory of the container that comes from outside.

    >>> Mount.parse("/home/ann/data:/data:ro")
    Mount(kind=<MountKind.HOST: 'host'>, source='/home/ann/data', target='/data', read_only=True)
    >>> Mount.parse("nfs://server/export:/data").source
    'server:/export'
    """

    kind: MountKind
    source: str
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount:
        """`/host/path:/target`, `volume:/target` or `nfs://server/path:/target`, `:ro` after it."""
        match = re.fullmatch(r"(nfs://[^/:]+/[^:]*|/[^:]*|[\w.-]+):(/[^:]*)(:r[ow])?", text)
        if not match:
            raise JobError(
                f"{text!r} is not a mount: write /host/path:/target, volume:/target or "
                "nfs://server/path:/target, and :ro after it if nothing is to be written there"
            )
        source, target, mode = match.groups()
        if source.startswith("nfs://"):
            server, _, path = source.removeprefix("nfs://").partition("/")
            return cls(MountKind.NFS, f"{server}:/{path}", target, mode == ":ro")
        kind = MountKind.HOST if source.startswith("/") else MountKind.VOLUME
        return cls(kind, source, target, mode == ":ro")


@dataclass(frozen=True)
class Container:
    """How the tasks' containers are made. `credentials` is a key file of this machine."""

    image: str
    python: str = "python"
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    credentials: str | None = None

    def validate(self) -> None:
        """Raise a JobError if two mounts are in each other's way."""
        targets = [mount.target for mount in self.mounts]
        twice = sorted({target for target in targets if targets.count(target) > 1})
        if twice:
            raise JobError(f"{twice[0]} is mounted twice: leave one out (--mount)")

    def with_key(self) -> Container:
        """The same with the key file among its mounts, where there are no secrets."""
        if not self.credentials:
            return self
        key = Mount(MountKind.HOST, self.credentials, CREDENTIALS_PATH, read_only=True)
        return replace(self, mounts=(*self.mounts, key))
