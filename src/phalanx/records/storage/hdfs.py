"""An fsspec file system for HDFS on a native client, without Java."""

import io
import os
import socket
from functools import lru_cache
from typing import Any

from hdfs_native import WriteOptions
from hdfs_native.fsspec import HdfsFileSystem as NativeFileSystem
from hdfs_native.fsspec import ViewfsFileSystem

from phalanx.errors import DataError
from phalanx.records.types import Buffer, FileSystem

DEFAULT_PORT = 8020
_CONNECT_SECONDS = 10.0
_clients: set[tuple[int, Any]] = set()
"""Every client and the process that created it, kept alive for the life of the process.

A client that is destroyed in a forked process waits for threads that do not exist there, and
fsspec drops all file systems after a fork, such as the one by which PySpark starts Java.
"""


class HdfsFileSystem(NativeFileSystem):
    """`hdfs://host:port/path`, `hdfs://nameservice/path`, and `hdfs:///path`.

    Name services and the default are read from HADOOP_CONF_DIR, the Kerberos ticket from `kinit`.
    """

    def __init__(self, host: str | None = None, port: int | None = None, **options: Any) -> None:
        if host and port:
            check_reachable(host, port)
        try:
            super().__init__(host, port, **options)
        except RuntimeError:
            # A name that is not in the configuration is a host.
            if not host or port:
                raise
            check_reachable(host, DEFAULT_PORT)
            super().__init__(host, DEFAULT_PORT, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Rename a file, atomically replacing an existing one."""
        super().mv(path1, path2, **{"overwrite": True, **options})

    def rmdir(self, path: str) -> None:
        """Remove a directory; one that is not empty raises OSError, as elsewhere."""
        try:
            super().rmdir(path)
        except RuntimeError as error:
            raise OSError(f"cannot remove {path}: {error}") from None

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """Read a range of a file; negative positions count from its end."""
        reader = self.client.read(self._strip_protocol(path))
        span = range(len(reader))[start:end]
        return bytes(reader.read_range(span.start, len(span)))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> io.RawIOBase:
        if mode == "rb":
            return _Reader(self.client.read(self._strip_protocol(path)))
        if options.pop("create_parent", True):
            return _Writer(super()._open(path, mode, **options))
        chosen = WriteOptions(overwrite=True, create_parent=False)
        return _Writer(self.client.create(self._strip_protocol(path), chosen))


class _Reader(io.RawIOBase):
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

    def readinto(self, target: Buffer) -> int:
        view = memoryview(target).cast("B")
        data = self._inner.read(len(view))
        view[: len(data)] = data
        return len(data)


class _Writer(io.RawIOBase):
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._count = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
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
def check_reachable(host: str, port: int) -> None:
    """Check that a NameNode answers; the client itself would retry for minutes."""
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise DataError(
            f"no NameNode answers at {host}:{port} ({error.strerror or error}): check the host and "
            "the port (fs.defaultFS in core-site.xml)"
        ) from None


def connect(scheme: str, path: str) -> tuple[FileSystem, str]:
    pid = os.getpid()
    if any(process != pid for process, _ in _clients):
        raise DataError(
            f"cannot open {path}: this process was forked from one that had used {scheme}://, and "
            "the client does not survive a fork. Start the process by 'spawn' (see "
            "multiprocessing), or fork before the first use"
        )
    kind = {"hdfs": HdfsFileSystem, "viewfs": ViewfsFileSystem}[scheme]
    filesystem = kind(**kind._get_kwargs_from_urls(path))
    _clients.add((pid, filesystem.client))
    return filesystem, kind._strip_protocol(path)
