"""Real Docker engines in temporary directories, with an image of this machine's files."""

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

import pip

IMAGE = "this-machine:1"
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
# The engine adds its init to sbin, which therefore cannot be a link into a mounted directory.
FOLDERS = ("usr", "etc", "tmp", "app", "sbin", "proc", "dev")


def why_not() -> str | None:
    """Return why Docker cannot be started here, or None."""
    if os.getuid() != 0:
        return "the Docker engine needs root"
    missing = [name for name in ("docker", "dockerd", "containerd") if not shutil.which(name)]
    return f"{', '.join(missing)} not installed (Debian: docker.io)" if missing else None


def options(app: Path) -> list[str]:
    """Return the mounts that give a task this machine's Python, and `app` as its directory."""
    return [
        f"--image={IMAGE}",
        f"--python={sys.executable}",
        *(f"--mount={path}:{path}:ro" for path in _shared_paths()),
        f"--mount={app}:/app",
    ]


def make_mounts() -> list[str]:
    """Return the options of `docker run` for a container with this machine's programs."""
    return [f"--volume={path}:{path}:ro" for path in _shared_paths()]


def _shared_paths() -> list[Path]:
    seen = [Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[2]]
    return [path for path in dict.fromkeys(seen) if path == Path("/usr") or not _in_usr(path)]


def _in_usr(path: Path) -> bool:
    return path.is_relative_to("/usr")


@contextlib.contextmanager
def engine(directory: Path, network: str | None = None) -> Iterator[dict[str, str]]:
    """Start an engine, optionally in a network namespace, and yield the variables for `docker`."""
    variables = {"DOCKER_HOST": f"unix://{directory}/docker.sock"}
    with (directory / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            [
                # `ip netns exec` would hide the control groups.
                *(["nsenter", f"--net=/run/netns/{network}"] if network else []),
                "dockerd",
                "--oom-score-adjust=0",
                # Leave nothing behind in this machine's network.
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
        deadline = time.monotonic() + 240
        while _docker(variables, "version").returncode:
            said = (directory / "dockerd.log").read_text()[-2000:]
            assert process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.2)
        done = _docker(variables, "import", "--change", "WORKDIR /app", "-", IMAGE, given=_root())
        assert done.returncode == 0, done.stderr
        yield variables
    finally:
        process.terminate()
        process.wait(240)


def import_base(variables: dict[str, str], image: str) -> None:
    """Build a small image with Debian's Python, pip and what our Dockerfiles run, offline."""
    tools = ("sh", "python3.11", "install")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        found = [Path(str(shutil.which(name, path="/usr/bin"))) for name in tools]
        linked = subprocess.run(
            ["ldd", *found], capture_output=True, text=True, timeout=240, check=False
        ).stdout
        libraries = {word for word in linked.split() if word.startswith("/lib")}
        for path in [*found, *map(Path, libraries)]:
            target = Path("/usr") / path.relative_to("/") if path.parts[1] != "usr" else path
            archive.add(path.resolve(), str(target).lstrip("/"))
        archive.add("/usr/lib/python3.11", "usr/lib/python3.11", filter=_source_only)
        packages = "usr/lib/python3/dist-packages"
        archive.add(Path(pip.__file__).parent, f"{packages}/pip", filter=_source_only)
        for link, at in {**LINKS, "usr/bin/python": "python3.11"}.items():
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, at
            archive.addfile(entry)
        for folder in ("tmp", "home"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
        text = b"#!/usr/bin/python\nfrom pip._internal.cli.main import main\nmain()\n"
        entry = tarfile.TarInfo("usr/bin/pip")
        entry.mode, entry.size = 0o755, len(text)
        archive.addfile(entry, io.BytesIO(text))
    change = ["--change", "ENV PIP_NO_INDEX=1 PIP_BREAK_SYSTEM_PACKAGES=1"]
    done = _docker(variables, "import", *change, "-", image, given=content.getvalue())
    assert done.returncode == 0, done.stderr


def _source_only(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.name.endswith(("__pycache__", "/test", "/idlelib")) else entry


@contextlib.contextmanager
def swarm(directory: Path, count: int) -> Iterator[list[dict[str, str]]]:
    """Start engines on one network, each in a namespace like a host; the first is the manager."""
    mark = _mark()
    with contextlib.ExitStack() as stack:
        _ip("link", "add", f"{mark}br", "type", "bridge")
        stack.callback(_ip, "link", "del", f"{mark}br")
        _ip("link", "set", f"{mark}br", "up")
        engines = []
        for number in range(count):
            name = f"{mark}n{number}"
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", name, "master", f"{mark}br", "up")
            _ip("-n", name, "addr", "add", f"10.213.0.{number + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", name, "link", "set", device, "up")
            place = directory / str(number)
            place.mkdir()
            engines.append(stack.enter_context(engine(place, name)))
        manager = engines[0]
        _must(manager, "swarm", "init", "--advertise-addr=10.213.0.1")
        token = _must(manager, "swarm", "join-token", "--quiet", "worker")
        for other in engines[1:]:
            _must(other, "swarm", "join", f"--token={token}", "10.213.0.1:2377")
        yield engines


@contextlib.contextmanager
def cut_off(number: int) -> Iterator[None]:
    """Disconnect this engine from the swarm."""
    _ip("link", "set", f"{_mark()}n{number}", "down")
    try:
        yield
    finally:
        _ip("link", "set", f"{_mark()}n{number}", "up")


def _mark() -> str:
    return f"px{os.getpid() % 10000}"


def _must(variables: dict[str, str], *arguments: str) -> str:
    done = _docker(variables, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=120, capture_output=True)


def _root() -> bytes:
    """Make the root of a file system, most of which is mounted."""
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
        timeout=240,
        check=False,
    )
