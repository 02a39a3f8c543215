"""A real sshd on this machine, with a key for the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SSHD = "/usr/sbin/sshd"


@dataclass(frozen=True)
class Server:
    port: int
    directory: Path

    def options(self, hosts: int = 1) -> list[str]:
        """Return the options of `phalanx launch ssh` that reach it, as if it were several hosts."""
        given = [
            f"IdentityFile={self.directory}/key",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
        ]
        return [
            *(f"--ssh-option={option}" for option in given),
            *(f"--host=ssh://127.0.0.1:{self.port}" for _ in range(hosts)),
        ]


def why_not() -> str | None:
    """Return why sshd cannot be started here, or None."""
    missing = [each for each in (SSHD, "ssh", "ssh-keygen") if not shutil.which(each)]
    return f"{', '.join(missing)} not installed (Debian: openssh-server)" if missing else None


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Server]:
    """Start sshd, which accepts the key in its directory."""
    for name in ("key", "host_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True
        )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = directory / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {directory}/host_key\n"
        f"AuthorizedKeysFile {directory}/key.pub\nPidFile none\nStrictModes no\n"
        "UsePAM no\nMaxStartups 100\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (directory / "sshd.log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log)
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < deadline, (directory / "sshd.log").read_text()
            time.sleep(0.05)
        yield Server(port, directory)
    finally:
        process.terminate()
        process.wait(60)
