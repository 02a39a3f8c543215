"""A Dockerfile and a lock file for a program: packages have the versions installed here."""

import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

from phalanx.errors import JobError
from phalanx.launch.containers.engine import ask
from phalanx.launch.generated_file import check_generated, header, write_generated
from phalanx.launch.job import Program

DOCKERFILE = "Dockerfile"
LOCK = "requirements.lock"
_BUILD_SECONDS = 3600.0
_FAILING = "nothing was built"
_USER = 1000
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu")
# The base image has its own versions of the tools that install packages.
_TOOLS = frozenset({"pip", "setuptools", "wheel"})


@dataclass(frozen=True)
class Contents:
    """The contents of an image. Paths are relative to the directory that it is built from."""

    program: Program
    paths: tuple[str, ...]
    requirements: tuple[str, ...]
    lock: Mapping[str, str]
    base: str
    gpu: bool = False
    wheels: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImagePlan:
    """The generated files, and the paths that are copied beside them."""

    dockerfile: str
    lock: str
    paths: tuple[str, ...]

    def render(self) -> str:
        return self.dockerfile

    def write(self, directory: Path) -> None:
        check_generated(directory / LOCK, "image")
        write_generated(directory / DOCKERFILE, self.dockerfile, "image")
        write_generated(directory / LOCK, self.lock, "image")

    def build(self, directory: Path, tag: str) -> None:
        """Build the image and show the engine's output; only the planned files are sent."""
        ask("version", "--format", "{{.Server.Version}}", failing=_FAILING)
        command = ["docker", "build", "--tag", tag, "-"]
        given = self._pack(directory)
        try:
            done = subprocess.run(command, input=given, timeout=_BUILD_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise JobError(f"{_FAILING} in {_BUILD_SECONDS / 60:.0f} minutes") from None
        if done.returncode:
            raise JobError(f"{_FAILING}: see the error of docker above")

    def _pack(self, directory: Path) -> bytes:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for name in (DOCKERFILE, LOCK, *self.paths):
                # Owners and times are removed, so that the same files make the same image.
                archive.add(directory / name, name, filter=_anonymous)
        return content.getvalue()


def plan_image(contents: Contents) -> ImagePlan:
    gpu = [
        "# CUDA comes with the wheels, the driver with the NVIDIA Container Toolkit of the host.",
        "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ]
    install = ["pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    wheels = [_copy(path, "/wheels/") for path in contents.wheels]
    if wheels:
        install.append("--find-links=/wheels")
    install += [f"--constraint=/{LOCK}", *contents.requirements]
    installed = [*wheels, _copy(LOCK, f"/{LOCK}"), f"RUN {json.dumps(install)}"]
    lines = [
        f"FROM {contents.base}",
        "ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=phalanx HOME=/home/phalanx",
        *(gpu if contents.gpu else []),
        f"RUN install -d -o {_USER} -g {_USER} /app /home/phalanx",
        *(installed if contents.requirements else []),
        "WORKDIR /app",
        *(_copy(path, path) for path in contents.paths),
        f"USER {_USER}:{_USER}",
        f"CMD {json.dumps([*contents.program.command(), *contents.program.arguments])}",
    ]
    pins = sorted(f"{name}=={version}" for name, version in _lock_for(contents).items())
    return ImagePlan(
        header("image") + "\n".join(lines) + "\n",
        header("image") + "".join(f"{pin}\n" for pin in pins),
        (*contents.paths, *contents.wheels),
    )


def _lock_for(contents: Contents) -> dict[str, str]:
    """Pin both names of TensorFlow to the version of the one that is installed here."""
    versions = [contents.lock[name] for name in _TENSORFLOWS if name in contents.lock]
    other = {name: text for name, text in contents.lock.items() if name not in _TENSORFLOWS}
    return other | dict.fromkeys(_TENSORFLOWS, versions[0]) if versions else other


def _copy(source: str, target: str) -> str:
    return f"COPY {json.dumps([source, target])}"


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if PurePosixPath(entry.name).name in ("__pycache__", ".git"):
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def lock_environment(installed: Iterable[Distribution] | None = None) -> dict[str, str]:
    """Return the version of every installed package, except those from a local directory."""
    found = list(distributions() if installed is None else installed)
    # A package that is installed from a directory may be listed a second time by that directory.
    local = {_plain(each.name) for each in found if each.read_text("direct_url.json") is not None}
    lock = {_plain(each.name): each.version for each in found}
    return {name: lock[name] for name in lock if name not in local | _TOOLS}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements(path: Path) -> tuple[str, ...]:
    """Read the requirements of a file, without comments; options of pip are a JobError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path} cannot be read: {error}") from None
    found = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    wanted = tuple(line for line in found if line)
    for line in wanted:
        if line.startswith("-") or line.endswith("\\"):
            raise JobError(f"{path} has {line!r}: an image takes requirements only, one on a line")
    return wanted


def check_pinned(contents: Contents) -> None:
    wheels = {_plain(PurePosixPath(path).name.partition("-")[0]) for path in contents.wheels}
    for requirement in contents.requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        known = name is not None and _plain(name[0]) in {*contents.lock, *wheels}
        if not known and "==" not in requirement and "@" not in requirement:
            raise JobError(
                f"{requirement} has no version and is not installed here: write {requirement}==…, "
                "or install it here, to use the installed version"
            )
