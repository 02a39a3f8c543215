"""HDFS without Java: fsspec's file system over a native client, made fit for our readers."""

from __future__ import annotations

import contextlib
import io
import os
import socket
from functools import lru_cache
from typing import Any

from hdfs_native.fsspec import HdfsFileSystem as NativeFileSystem
from hdfs_native.fsspec import ViewfsFileSystem

from phalanx.errors import DataError

DEFAULT_PORT = 8020
_CONNECT_SECONDS = 10.0
_clients: set[tuple[int, Any]] = set()
"""Every client, for good, with the process that made it. One that ends in a forked process waits
there for threads that it does not have, and fsspec lets go of all file systems after a fork: also
in the one by which PySpark starts Java."""


class HdfsFileSystem(NativeFileSystem):
    """`hdfs://host:port/path`, `hdfs://nameservice/path`, and `hdfs:///path`.

    Name services and the default come from the files in HADOOP_CONF_DIR; Kerberos from the ticket
    that `kinit` got.
    """

    def __init__(self, host: str | None = None, port: int | None = None, **options: Any) -> None:
        if host and port:
            check_answers(host, port)
        try:
            super().__init__(host, port, **options)
        except RuntimeError:
            # A name that the configuration does not know is a host.
            if not host or port:
                raise
            check_answers(host, DEFAULT_PORT)
            super().__init__(host, DEFAULT_PORT, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Rename, in place of what has that name, in one go."""
        super().mv(path1, path2, **{"overwrite": True, **options})

    def rmdir(self, path: str) -> None:
        """Remove an empty directory; if it is not, that is an OSError, as elsewhere."""
        try:
            super().rmdir(path)
        except RuntimeError as error:
            raise OSError(f"cannot remove {path}: {error}") from None

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """A part of a file; positions below zero count from its end."""
        reader = self.client.read(self._strip_protocol(path))
        begin, stop, _ = slice(start, end).indices(len(reader))
        return bytes(reader.read_range(begin, max(0, stop - begin)))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            return _Reader(self.client.read(self._strip_protocol(path)))
        return _Writer(super()._open(path, mode, **options))


class _Reader(io.RawIOBase):
    """The native client's reader, with all that a raw file of Python's has."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.size = len(inner)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._inner.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._inner.tell())

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        data = self._inner.read(len(view))
        view[: len(data)] = data
        return len(data)


class _Writer(io.RawIOBase):
    """The native client's writer, for whatever has bytes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._count = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """All of it."""
        view = memoryview(data)
        self._inner.write(data if isinstance(data, bytes) else view.tobytes())
        self._count += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._count

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._inner.close()


@lru_cache(maxsize=64)
def check_answers(host: str, port: int) -> None:
    """The client itself would try a NameNode that is not there for minutes."""
    try:
        with contextlib.closing(socket.create_connection((host, port), _CONNECT_SECONDS)):
            pass
    except OSError as error:
        raise DataError(
            f"no NameNode answers at {host}:{port} ({error.strerror or error}): check the host and "
            "the port (fs.defaultFS in core-site.xml)"
        ) from None


def connect(scheme: str, path: str) -> tuple[Any, str]:
    """The file system of a path, and the path in it."""
    here = os.getpid()
    if any(process != here for process, _ in _clients):
        raise DataError(
            f"cannot open {path}: this process was forked from one that had used {scheme}://, and "
            "the client does not survive that. Start it by 'spawn' (see multiprocessing), or fork "
            "before the first use"
        )
    kind = {"hdfs": HdfsFileSystem, "viewfs": ViewfsFileSystem}[scheme]
    filesystem = kind(**kind._get_kwargs_from_urls(path))
    _clients.add((here, filesystem.client))
    return filesystem, kind._strip_protocol(path)
