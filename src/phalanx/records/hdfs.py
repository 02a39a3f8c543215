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


FILE_SYSTEMS = {"hdfs": HdfsFileSystem, "viewfs": ViewfsFileSystem}
