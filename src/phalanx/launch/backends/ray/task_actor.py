"""The actor of one task: holds a port for it, and runs its program as a child process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.launch.processes.stdin_guard import guard_stdin
from phalanx.launch.termination import decode_exit_code

_MOST_BYTES = 1 << 20


class TaskActor:
    """A task on its node. Its output is in a file without a name, which goes with the actor."""

    def __init__(self) -> None:
        self._port: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor is there

    def open(self, port: int = 0) -> str:
        """Hold a port of this node, any free one or the one given, and say the address."""
        import ray  # noqa: PLC0415

        host = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        if port:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", port))
        # Bound and not listening: nobody gets it by chance, but the task can still take it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port = held
        named = f"[{host}]" if ":" in host else host
        return f"{named}:{held.getsockname()[1]}"

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], directory: str, grace: float
    ) -> None:
        """Start the program, or start it again. `python` is the one that Ray itself runs in."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self._process = subprocess.Popen(
            [*guard_stdin(directory, grace), *command],
            env={**os.environ, "PATH": path, **environment},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def poll(self, place: int) -> tuple[bytes, int | None]:
        """What was printed from that place on, and the exit code if all of it has been told."""
        assert self._process is not None
        code = self._process.poll()
        printed = os.pread(self._output.fileno(), _MOST_BYTES, place)
        if code is None or printed:
            return printed, None
        return printed, decode_exit_code(code)

    def end(self) -> None:
        """Ask the program to end; after its grace it is killed."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
