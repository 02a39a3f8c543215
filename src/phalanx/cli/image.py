"""`phalanx image`: write the Dockerfile of a program, and build the image."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import click

from phalanx.cli.follow import print_message
from phalanx.errors import JobError
from phalanx.launch.containers.image import (
    DOCKERFILE,
    LOCK,
    Contents,
    check_pinned,
    lock_environment,
    plan_image,
    read_requirements,
)
from phalanx.launch.job import Program, ProgramKind


@click.command()
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
@click.option("--build", "tag", metavar="TAG", help="Also build the image, with this tag.")
@click.option("--dry-run", is_flag=True, help="Print the Dockerfile without writing it.")
def command(
    program: str,
    more: tuple[str, ...],
    gpu: bool,
    requirements: str | None,
    wheels: tuple[str, ...],
    base: str | None,
    tag: str | None,
    dry_run: bool,
) -> None:
    """Write a Dockerfile for PROGRAM, a Python file, and every other PATH that it needs.

    The image gets the package versions of this environment, which are written to requirements.lock
    beside the Dockerfile. The program runs in /app as a normal user. All paths must be below this
    directory; no other file is copied into the image.

    \b
    Example:
      phalanx image train.py models/ --build digits:1
      phalanx launch docker --image digits:1 --workers 2 train.py
    """
    here = Path.cwd()
    paths = tuple(_relative(path, here) for path in (program, *more))
    needed = tuple(_relative(path, here) for path in wheels)
    lock = lock_environment()
    wanted = (
        read_requirements(Path(requirements))
        if requirements
        else _require_phalanx(lock, needed, gpu)
    )
    contents = Contents(
        program=Program(ProgramKind.FILE, paths[0]),
        paths=paths,
        requirements=wanted,
        lock=lock,
        base=base or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim-bookworm",
        gpu=gpu,
        wheels=needed,
    )
    check_pinned(contents)
    plan = plan_image(contents)
    if dry_run:
        click.echo(plan.render(), nl=False)
        return
    plan.write(here)
    print_message(f"{DOCKERFILE} and {LOCK} are written")
    if tag:
        print_message(f"building {tag}, which may take minutes")
        plan.build(here, tag)
        print_message(f"{tag} is built")


def _relative(path: str, here: Path) -> str:
    """Return the path in the build context, which is this directory."""
    full = (here / path).resolve()
    if not full.is_relative_to(here.resolve()):
        raise JobError(
            f"{path} is outside of this directory, which is the build context of the image"
        )
    return full.relative_to(here.resolve()).as_posix()


def _require_phalanx(lock: dict[str, str], wheels: tuple[str, ...], gpu: bool) -> tuple[str, ...]:
    """Return the requirement of this version of Phalanx with TensorFlow."""
    if "phalanx" not in lock and not wheels:
        raise JobError(
            "this Phalanx is installed from a directory, which the image cannot install: build a "
            "wheel (pip wheel --no-deps DIRECTORY) and add --wheel FILE, or list other packages "
            "with --requirements"
        )
    return (f"phalanx[{'gpu' if gpu else 'cpu'}]=={version('phalanx')}",)
