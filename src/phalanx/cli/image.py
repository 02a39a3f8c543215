"""`phalanx image`: write the Dockerfile of a program, and build the image."""

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import click

from phalanx.cli.follow import print_message
from phalanx.cli.options import CheckedCommand
from phalanx.cli.printing import echo
from phalanx.errors import JobError
from phalanx.launch.containers import image
from phalanx.launch.containers.container import check_image
from phalanx.launch.containers.package_lock import Wheel, lock_environment, resolve
from phalanx.launch.job import Program, ProgramKind

_DEFAULT_BASE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim-bookworm"


@click.command(cls=CheckedCommand)
@click.argument("program", metavar="PROGRAM", type=click.Path(exists=True))
@click.argument("more", metavar="[PATH]...", nargs=-1, type=click.Path(exists=True))
@click.option("--gpu", is_flag=True, help="Install TensorFlow with CUDA, for GPUs.")
@click.option(
    "--requirements",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The packages to install  [default: phalanx with TensorFlow]",
)
@click.option(
    "--wheel",
    "wheels",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A package file to install, for packages on no index. Can be repeated.",
)
@click.option(
    "--base", metavar="IMAGE", help="The base image  [default: python:VERSION-slim-bookworm]"
)
@click.option(
    "--no-hashes", is_flag=True, help="Lock the versions of packages only, without an index."
)
@click.option("--build", "tag", metavar="TAG", help="Also build the image, with this tag.")
@click.option("--dry-run", is_flag=True, help="Print the Dockerfile without writing it.")
def command(
    program: str,
    more: tuple[str, ...],
    gpu: bool,
    requirements: str | None,
    wheels: tuple[str, ...],
    base: str | None,
    no_hashes: bool,
    tag: str | None,
    dry_run: bool,
) -> None:
    """Write a Dockerfile for PROGRAM, a Python file, and every other PATH that it needs.

    The image gets the package versions of this environment. requirements.lock beside the Dockerfile
    lists every package with the hash of its file; the base image has its digest, if the engine
    knows it. So the same files make the same image next year. The program runs in /app as a normal
    user. All paths must be below this directory; no other file is copied into the image.

    \b
    Example:
      phalanx image train.py models/ --build digits:1
      phalanx launch docker --image digits:1 --workers 2 train.py
    """
    for name in (base, tag):
        if name is not None:
            check_image(name)
    here = Path.cwd()
    paths = tuple(_relative(path, here) for path in (program, *more))
    needed = tuple(Wheel(_relative(path, here)) for path in wheels)
    for each in needed:
        each.validate()
    lock = lock_environment()
    if requirements:
        wanted = image.read_requirements(Path(requirements))
    else:
        wanted = _require_phalanx(lock, needed, gpu)
    contents = image.Contents(
        program=Program(ProgramKind.FILE, paths[0]),
        paths=paths,
        requirements=wanted,
        lock=lock,
        base=image.pin_base(base or _DEFAULT_BASE, pull=tag is not None),
        gpu=gpu,
        wheels=needed,
    )
    image.check_pinned(contents)
    if wanted and not no_hashes:
        packages = resolve(wanted, needed, image.pin_versions(lock))
        contents = replace(contents, packages=packages)
    plan = image.plan_image(contents)
    if dry_run:
        echo(plan.render(), nl=False)
        return
    plan.write(here)
    if "@" not in contents.base:
        print_message(
            f"the base image {contents.base} is not pinned, because no Docker engine here has it: "
            f"docker pull {contents.base}, or --base {contents.base}@sha256:…"
        )
    print_message(f"{image.DOCKERFILE} and {image.LOCK} are written")
    if tag:
        print_message(f"building {tag}, which may take minutes")
        plan.build(here, tag)
        print_message(f"{tag} is built")


def _relative(path: str, here: Path) -> str:
    """Return the path in the build context, which is this directory."""
    full = (here / path).resolve()
    if not full.is_relative_to(here.resolve()):
        what = "this directory, which is the build context of the image"
        raise JobError(f"{path} is outside of {what}")
    return full.relative_to(here.resolve()).as_posix()


def _require_phalanx(lock: dict[str, str], wheels: tuple[Wheel, ...], gpu: bool) -> tuple[str, ...]:
    if "phalanx" not in lock and not wheels:
        raise JobError(
            "this Phalanx is installed from a directory, which the image cannot install: build a "
            "wheel (pip wheel --no-deps DIRECTORY) and add --wheel FILE, or list other packages "
            "with --requirements"
        )
    return (f"phalanx[{'gpu' if gpu else 'cpu'}]=={version('phalanx')}",)
