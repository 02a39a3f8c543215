"""A real Docker engine in a directory of its own, with an image made of this machine's files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

IMAGE = "this-machine:1"
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
# The engine puts its own init into sbin, so that cannot lead into a directory that is mounted.
FOLDERS = ("usr", "etc", "tmp", "app", "sbin", "proc", "dev")


def why_not() -> str | None:
    """Why it cannot be started here."""
    if os.getuid() != 0:
        return "the Docker engine needs root"
    missing = [name for name in ("docker", "dockerd", "containerd") if not shutil.which(name)]
    return f"{', '.join(missing)} not installed (Debian: docker.io)" if missing else None


def options(app: Path) -> list[str]:
    """What a task needs to find this machine's Python, and `app` as its directory."""
    seen = [Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[2]]
    mounts = [path for path in dict.fromkeys(seen) if path == Path("/usr") or not _in_usr(path)]
    return [
        f"--image={IMAGE}",
        f"--python={sys.executable}",
        *(f"--mount={path}:{path}:ro" for path in mounts),
        f"--mount={app}:/app",
    ]


def _in_usr(path: Path) -> bool:
    return path.is_relative_to("/usr")


@contextlib.contextmanager
def engine(directory: Path) -> Iterator[dict[str, str]]:
    """Start it; what is given are the variables that `docker` needs."""
    variables = {"DOCKER_HOST": f"unix://{directory}/docker.sock"}
    with (directory / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "dockerd",
                "--oom-score-adjust=0",
                # Nothing of it is to stay in this machine's network.
                "--bridge=none",
                "--iptables=false",
                f"--data-root={directory}/data",
                f"--exec-root={directory}/exec",
                f"--pidfile={directory}/pid",
                f"--host={variables['DOCKER_HOST']}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 60
        while _docker(variables, "version").returncode:
            said = (directory / "dockerd.log").read_text()[-2000:]
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.2)
        done = _docker(variables, "import", "--change", "WORKDIR /app", "-", IMAGE, given=_root())
        assert done.returncode == 0, done.stderr
        yield variables
    finally:
        process.terminate()
        process.wait(60)


def _root() -> bytes:
    """The root of a file system that is mostly mounted."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for name, target in LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return content.getvalue()


def _docker(
    variables: dict[str, str], *arguments: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["docker", *arguments],
        env={**os.environ, **variables},
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )
