"""`phalanx image`: a Dockerfile for a program, and the image."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import click

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
@click.option("--gpu", is_flag=True, help="For GPUs: TensorFlow with CUDA.")
@click.option(
    "--requirements",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="What to install  [default: phalanx with TensorFlow]",
)
@click.option(
    "--wheel",
    "wheels",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A package that no index has. Can be repeated.",
)
@click.option(
    "--base", metavar="IMAGE", help="Build on this  [default: python:VERSION-slim-bookworm]"
)
@click.option("--build", "tag", metavar="TAG", help="Build it, too, under this name.")
@click.option("--dry-run", is_flag=True, help="Print the Dockerfile, and write nothing.")
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
    """Write a Dockerfile for PROGRAM, a Python file, and for every other PATH that it needs.

    Everything installed has the version that is installed here: those are in requirements.lock
    beside the Dockerfile. The program runs in /app, and not as root. All paths are below this
    directory, and nothing else of it goes into the image.

    \b
    Example:
      phalanx image train.py models/ --build digits:1
      phalanx launch docker --image digits:1 --workers 2 train.py
    """
    here = Path.cwd()
    paths = tuple(_relative(path, here) for path in (program, *more))
    needed = tuple(_relative(path, here) for path in wheels)
    lock = lock_environment()
    wanted = read_requirements(Path(requirements)) if requirements else _phalanx(lock, needed, gpu)
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
    click.echo(f"phalanx: {DOCKERFILE} and {LOCK} are written", err=True)
    if tag:
        click.echo(f"phalanx: building {tag}, which may take minutes", err=True)
        plan.build(here, tag)
        click.echo(f"phalanx: {tag} is built", err=True)


def _relative(path: str, here: Path) -> str:
    """The path as the engine sees it."""
    full = (here / path).resolve()
    if not full.is_relative_to(here.resolve()):
        raise JobError(f"{path} is outside of this directory, which the image is built from")
    return full.relative_to(here.resolve()).as_posix()


def _phalanx(lock: dict[str, str], wheels: tuple[str, ...], gpu: bool) -> tuple[str, ...]:
    """Phalanx itself, with TensorFlow."""
    if "phalanx" not in lock and not wheels:
        raise JobError(
            "this Phalanx comes from a directory, where the image cannot get it: make a wheel "
            "(pip wheel --no-deps DIRECTORY) and add --wheel FILE, or say with --requirements "
            "what to install instead"
        )
    return (f"phalanx[{'gpu' if gpu else 'cpu'}]=={version('phalanx')}",)
