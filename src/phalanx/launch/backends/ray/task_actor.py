"""The actor of one task: reserves a port, and runs the program as a child process."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.launch.processes.stdin_guard import guard_stdin
from phalanx.launch.termination import decode_exit_code

_CHUNK_BYTES = 1 << 20


class TaskActor:
    """Runs one task on its node. The output is in an unnamed file, which the actor owns."""

    def __init__(self) -> None:
        self._port: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - the actor owns it

    def open(self, port: int = 0) -> str:
        """Reserve a port of this node, any free one or the given one, and return the address."""
        import ray  # noqa: PLC0415

        host = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        reserved = socket.socket(family, socket.SOCK_STREAM)
        if port:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", port))
        # The socket does not listen, so only the task can still bind the port.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port = reserved
        address = f"[{host}]" if ":" in host else host
        return f"{address}:{reserved.getsockname()[1]}"

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], directory: str, grace: float
    ) -> None:
        """Start or restart the program. `python` is the one that Ray itself runs in."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self._process = subprocess.Popen(
            [*guard_stdin(directory, grace), *command],
            env={**os.environ, "PATH": path, **environment},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def poll(self, offset: int) -> tuple[bytes, int | None]:
        """Return the output from an offset on and, once all of it was returned, the exit code."""
        assert self._process is not None
        code = self._process.poll()
        output = os.pread(self._output.fileno(), _CHUNK_BYTES, offset)
        if code is None or output:
            return output, None
        return output, decode_exit_code(code)

    def end(self) -> None:
        """End the program with SIGTERM and, after the grace period, SIGKILL."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
