"""A Dockerfile and a lock file for a program, which make the same image again next year."""

import contextlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from phalanx.errors import JobError
from phalanx.launch.containers.engine import ask
from phalanx.launch.containers.package_lock import (
    WHEELS,
    LockedPackage,
    Wheel,
    normalize_name,
    replace_by_wheels,
)
from phalanx.launch.generated_file import check_generated, header, write_generated
from phalanx.launch.job import Program

DOCKERFILE = "Dockerfile"
LOCK = "requirements.lock"
_BUILD_SECONDS = 3600.0
_PULL_SECONDS = 1800.0
_FAILING = "nothing was built"
_USER = 1000
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu")


@dataclass(frozen=True)
class Contents:
    """The contents of an image. Paths are relative to the directory that it is built from.

    `packages` is everything that is installed, each file with its hash. Without it, pip decides
    when the image is built, with the versions of `lock` for what is installed here.
    """

    program: Program
    paths: tuple[str, ...]
    requirements: tuple[str, ...]
    lock: Mapping[str, str]
    base: str
    gpu: bool = False
    wheels: tuple[Wheel, ...] = ()
    packages: tuple[LockedPackage, ...] = ()


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
    if contents.packages:
        # The lock is complete: pip installs these files, and nothing else.
        install += ["--no-deps", "--require-hashes", f"--requirement=/{LOCK}"]
    else:
        wanted = replace_by_wheels(contents.requirements, contents.wheels, WHEELS)
        install += [f"--constraint=/{LOCK}", *wanted]
    installed = [
        *(_copy(each.path, f"{WHEELS}/") for each in contents.wheels),
        _copy(LOCK, f"/{LOCK}"),
        f"RUN {json.dumps(install)}",
        f"RUN {json.dumps(['pip', 'check', '--disable-pip-version-check'])}",
    ]
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
    versions = pin_versions(contents.lock).items()
    pins = [each.render() for each in contents.packages] or sorted(
        f"{name}=={version}" for name, version in versions
    )
    return ImagePlan(
        header("image") + "\n".join(lines) + "\n",
        header("image") + "".join(f"{pin}\n" for pin in pins),
        (*contents.paths, *(each.path for each in contents.wheels)),
    )


def pin_versions(lock: Mapping[str, str]) -> dict[str, str]:
    """Pin both names of TensorFlow to the version of the one that is installed here."""
    versions = [lock[name] for name in _TENSORFLOWS if name in lock]
    other = {name: text for name, text in lock.items() if name not in _TENSORFLOWS}
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
    wheels = {each.name for each in contents.wheels}
    for requirement in contents.requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        known = name is not None and normalize_name(name[0]) in {*contents.lock, *wheels}
        if not known and "==" not in requirement and "@" not in requirement:
            raise JobError(
                f"{requirement} has no version and is not installed here: write {requirement}==…, "
                "or install it here, to use the installed version"
            )


def pin_base(image: str, pull: bool) -> str:
    """Return the image with its digest, if the Docker engine has it, or with `pull` can get it."""
    if "@" in image:
        return image
    digests = _find_digests(image)
    if pull and digests is None:
        with contextlib.suppress(JobError):
            ask("pull", "--quiet", image, seconds=_PULL_SECONDS)
        digests = _find_digests(image)
    return f"{image}@{digests[0].rpartition('@')[2]}" if digests else image


def _find_digests(image: str) -> list[str] | None:
    """Return the digests of an image, which a local one does not have; None without the image."""
    try:
        return list(
            json.loads(ask("image", "inspect", "--format", "{{json .RepoDigests}}", image)) or []
        )
    except (JobError, ValueError):
        return None
