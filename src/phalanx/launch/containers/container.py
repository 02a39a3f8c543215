"""The container of a task: its image, mounts and labels, and a key for Google Cloud."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from phalanx.errors import JobError
from phalanx.launch.values import is_image

PORT = 2222
CREDENTIALS_PATH = "/var/run/phalanx/credentials.json"
CREDENTIALS_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


class MountKind(Enum):
    HOST = "host"
    VOLUME = "volume"
    NFS = "nfs"


@dataclass(frozen=True)
class Mount:
    kind: MountKind
    source: str
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse /host/path:/target, volume:/target or nfs://server/path:/target, with `:ro`."""
        match = re.fullmatch(r"(nfs://[\w.-]+/[^:]*|/[^:]*|[\w.-]+):(/[^:]*)(:r[ow])?", text)
        if not match:
            raise JobError(
                f"{text!r} is not a mount: write /host/path:/target, volume:/target or "
                "nfs://server/path:/target, with :ro at the end for a read-only mount"
            )
        source, target, mode = match.groups()
        if source.startswith("nfs://"):
            server, _, path = source.removeprefix("nfs://").partition("/")
            return cls(MountKind.NFS, f"{server}:/{path}", target, mode == ":ro")
        kind = MountKind.HOST if source.startswith("/") else MountKind.VOLUME
        return cls(kind, source, target, mode == ":ro")


def check_image(name: str) -> None:
    if not is_image(name):
        raise JobError(f"{name!r} cannot be the name of an image: write registry/name:tag or "
                       "name@sha256:…")  # fmt: skip


@dataclass(frozen=True)
class Container:
    """The containers of all tasks. `credentials` is the path of a key file on this machine.

    `tensorboard_credentials` is that of TensorBoard, which does not get the key of the tasks.
    `user` replaces the image's user.
    """

    image: str
    python: str = "python"
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    credentials: str | None = None
    tensorboard_credentials: str | None = None
    user: int | None = None

    def validate(self) -> None:
        """Raise a JobError if the image is none, or two mounts have the same target."""
        check_image(self.image)
        targets = [mount.target for mount in self.mounts]
        twice = sorted({target for target in targets if targets.count(target) > 1})
        if twice:
            raise JobError(f"{twice[0]} is mounted twice: leave one out (--mount)")

    def credentials_variables(self) -> dict[str, str]:
        return {CREDENTIALS_VARIABLE: CREDENTIALS_PATH} if self.credentials else {}

    def for_tensorboard(self, model_dir: str | None) -> Self:
        """Return the container of TensorBoard, which reads with a key of its own."""
        remote = "://" in (model_dir or "")
        if remote and self.credentials and not self.tensorboard_credentials:
            raise JobError(
                f"TensorBoard cannot read {model_dir}: it does not get the key of --credentials, "
                "which may write; add --tensorboard-credentials with a key that may only read"
            )
        mounts = tuple(replace(each, read_only=True) for each in self.mounts)
        return replace(self, mounts=mounts, credentials=self.tensorboard_credentials)

    def with_credentials_mount(self) -> Self:
        """Return the container with the key file mounted, for engines without secrets."""
        if not self.credentials:
            return self
        key = Mount(MountKind.HOST, self.credentials, CREDENTIALS_PATH, read_only=True)
        return replace(self, mounts=(*self.mounts, key))
