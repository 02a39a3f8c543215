"""Locks the packages of an image: exact versions, and the hashes of the files to install."""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

from phalanx.errors import JobError

_RESOLVE_SECONDS = 1800.0
# The base image has its own versions of the tools that install packages.
_TOOLS = frozenset({"pip", "setuptools", "wheel"})
WHEELS = "/wheels"


@dataclass(frozen=True)
class LockedPackage:
    """A package of the lock file; `wheel` is the name of a file that is on no index."""

    name: str
    version: str
    sha256: str
    wheel: str | None = None

    def render(self) -> str:
        """Render the line of a requirements file."""
        where = f" @ file://{WHEELS}/{self.wheel}" if self.wheel else f"=={self.version}"
        return f"{self.name}{where} --hash=sha256:{self.sha256}"


@dataclass(frozen=True)
class Wheel:
    """A package file, by its path in the directory that the image is built from."""

    path: str

    @property
    def file(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def name(self) -> str:
        return normalize_name(self.file.partition("-")[0])

    @property
    def version(self) -> str:
        return self.file.split("-")[1]

    def validate(self) -> None:
        """Raise a JobError if the name of the file is not that of a wheel."""
        if not re.fullmatch(r"[\w.]+-[\w.!+]+(-\d\w*)?-[\w.]+-[\w.]+-[\w.]+\.whl", self.file):
            raise JobError(f"{self.path} is not named as a wheel: --wheel NAME-VERSION-….whl")


def replace_by_wheels(
    requirements: Sequence[str], wheels: Sequence[Wheel], folder: str
) -> list[str]:
    """Return the requirements with the path of each wheel, which no index can then replace.

    Args:
        requirements: What to install, such as `phalanx[cpu]==0.1.0`.
        wheels: The wheels, also of packages that are not among the requirements.
        folder: The directory that has the wheels.

    Returns:
        The requirements, as in `phalanx[cpu] @ file:///wheels/phalanx-0.1.0-py3-none-any.whl`.
    """
    left = {each.name: each for each in wheels}
    found = []
    for requirement in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)\s*(\[[^]]*\])?\s*(.*)", requirement)
        wheel = left.pop(normalize_name(match[1]), None) if match else None
        if match is None or wheel is None:
            found.append(requirement)
            continue
        exact = re.match(r"==\s*([^\s,;]+)", match[3])
        if exact and exact[1] != wheel.version:
            raise JobError(f"{wheel.path} has version {wheel.version}, not that of {requirement}")
        found.append(f"{match[1]}{match[2] or ''} @ file://{folder}/{wheel.file}")
    return found + [f"{each.name} @ file://{folder}/{each.file}" for each in left.values()]


def resolve(
    requirements: Sequence[str], wheels: Sequence[Wheel], versions: Mapping[str, str]
) -> tuple[LockedPackage, ...]:
    """Let pip find every package that the requirements need, with the hash of its file.

    Args:
        requirements: What to install.
        wheels: Package files; pip takes them from their paths.
        versions: The versions that packages must have if they are needed.

    Raises:
        JobError: pip cannot reach an index, or the requirements contradict each other.
    """
    with tempfile.TemporaryDirectory() as folder:
        for each in wheels:
            (Path(folder) / each.file).symlink_to(Path(each.path).absolute())
        pins = Path(folder) / "versions"
        pins.write_text("".join(f"{name}=={text}\n" for name, text in versions.items()))
        wanted = replace_by_wheels(requirements, wheels, folder)
        # Wheels only: a source distribution would be built by code that has no hash.
        options = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet"]
        command = [sys.executable, "-m", "pip", "install", *options, f"--constraint={pins}"]
        report = Path(folder) / "report"
        done = _run([*command, f"--report={report}", *wanted])
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = (lines or done.stderr.strip().splitlines() or ["pip gave no reason"])[0]
            raise JobError(
                f"the packages cannot be locked: {reason.removeprefix('ERROR: ')}; "
                "--no-hashes locks their versions only"
            )
        installed = json.loads(report.read_text())["install"]
    files = {each.name: each for each in wheels}
    return tuple(sorted((_lock(each, files) for each in installed), key=lambda each: each.name))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        minutes = _RESOLVE_SECONDS / 60
        raise JobError(f"the packages cannot be locked: pip took over {minutes:.0f} min") from None


def _lock(entry: Mapping[str, object], wheels: Mapping[str, Wheel]) -> LockedPackage:
    about, source = entry["metadata"], entry["download_info"]
    assert isinstance(about, dict) and isinstance(source, dict)
    name, version = normalize_name(about["name"]), str(about["version"])
    wheel = wheels.get(name)
    if wheel is not None:
        digest = hashlib.sha256(Path(wheel.path).read_bytes()).hexdigest()
        return LockedPackage(name, version, digest, wheel.file)
    hashes = source.get("archive_info", {}).get("hashes", {})
    if "sha256" not in hashes:
        raise JobError(
            f"the index has no hash of {name} {version}: --no-hashes locks versions only"
        )
    return LockedPackage(name, version, hashes["sha256"])


def lock_environment(installed: Iterable[Distribution] | None = None) -> dict[str, str]:
    """Return the version of every installed package, except those from a local directory."""
    found = list(distributions() if installed is None else installed)
    # A package that is installed from a directory may be listed a second time by that directory.
    local = {
        normalize_name(each.name) for each in found if each.read_text("direct_url.json") is not None
    }
    lock = {normalize_name(each.name): each.version for each in found}
    return {name: lock[name] for name in lock if name not in local | _TOOLS}


def normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
