"""The file of a lease: on a local or mounted file system, and on remote ones."""

import contextlib
import os
import uuid
from pathlib import Path
from typing import Protocol

from phalanx.errors import DataError

LEASE = ".phalanx-lease"
"""A hidden file, which is not copied with the others of a model_dir."""


class LeaseFile(Protocol):
    """One small file that several hosts read, create, replace and renew."""

    needs_settling: bool
    """Whether two may both believe that they have created it."""
    settle_seconds: float
    """How long after a write all others see it."""

    def read(self) -> str:
        """Return its contents; empty if it does not exist."""

    def read_version(self) -> tuple[str, int]:
        """Return its contents and a number that each renewal changes."""

    def create(self, text: str) -> bool:
        """Create it; False if it exists."""

    def replace(self, text: str) -> None:
        """Replace its contents atomically."""

    def renew(self, text: str) -> None:
        """Change its version."""

    def remove(self) -> None: ...


class LocalLeaseFile:
    """On a local file system or NFS. To renew it needs no space on the disk."""

    needs_settling = False
    settle_seconds = 0.2

    def __init__(self, directory: str) -> None:
        self._path = Path(directory, LEASE)

    def read(self) -> str:
        return self.read_version()[0]

    def read_version(self) -> tuple[str, int]:
        try:
            # NFS asks the server for the attributes when a file is opened, not before.
            with self._path.open() as file:
                return file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return "", 0

    def create(self, text: str) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._path.open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
        return True

    def replace(self, text: str) -> None:
        new = self._path.with_name(f"{LEASE}.{uuid.uuid4().hex}.new")
        try:
            new.write_text(text)
            new.replace(self._path)
        finally:
            new.unlink(missing_ok=True)

    def renew(self, text: str) -> None:
        try:
            os.utime(self._path)
        except FileNotFoundError:
            # Somebody has deleted it, perhaps with the directory.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self.replace(text)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


class RemoteLeaseFile:
    """On gs:// (TensorFlow's file systems) or hdfs:// (those of the records)."""

    needs_settling = True
    settle_seconds = 2.0

    def __init__(self, directory: str) -> None:
        self._path = f"{directory.rstrip('/')}/{LEASE}"
        self._is_hadoop = directory.partition("://")[0].lower() in ("hdfs", "viewfs")
        self._beats = 0

    def read(self) -> str:
        return self.read_version()[0]

    def read_version(self) -> tuple[str, int]:
        text, _, beats = self._read().partition("\n")
        return text, int(beats) if beats.isdecimal() else 0

    def create(self, text: str) -> bool:
        if self._read():
            return False
        self.replace(text)
        return True

    def replace(self, text: str) -> None:
        self._beats += 1
        content = f"{text}\n{self._beats}"
        if self._is_hadoop:
            from phalanx.records.storage import write_bytes  # noqa: PLC0415

            write_bytes(self._path, content.encode())
            return
        import tensorflow as tf  # noqa: PLC0415

        with tf.io.gfile.GFile(self._path, "w") as file:
            file.write(content)

    def renew(self, text: str) -> None:
        self.replace(text)

    def remove(self) -> None:
        if self._is_hadoop:
            from phalanx.records.storage import remove  # noqa: PLC0415

            remove(self._path)
            return
        import tensorflow as tf  # noqa: PLC0415

        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(self._path)

    def _read(self) -> str:
        if self._is_hadoop:
            from phalanx.records.storage import read_bytes  # noqa: PLC0415

            try:
                return read_bytes(self._path).decode()
            except (FileNotFoundError, DataError):
                return ""
        import tensorflow as tf  # noqa: PLC0415

        try:
            with tf.io.gfile.GFile(self._path) as file:
                return str(file.read())
        except tf.errors.NotFoundError:
            return ""


def open_lease_file(directory: str) -> LeaseFile:
    return RemoteLeaseFile(directory) if "://" in directory else LocalLeaseFile(directory)
