"""`phalanx dataset`: well-known data sets as TFRecord files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_OUT = click.option("--out", "-o", required=True, metavar="DIR", help="Where the files go.")
_SHARDS = click.option("--shards", type=click.IntRange(min=1), help="Files for each part.")
_VALIDATION = click.option(
    "--validation", is_flag=True, help="Keep 10,000 training examples apart for validation."
)


@click.group()
def command() -> None:
    """Write well-known data sets as TFRecord files, with `image` and `label` in each example.

    \b
    Example:
      phalanx dataset cifar10 --source cifar-10-python.tar.gz --out data/cifar10
      phalanx dataset synthetic --count 5000 --out data/synthetic
    """


@command.command()
@click.option("--source", metavar="PATH", help="The published folder or archive; left out, it is "
              "downloaded and its MD5 checked.")  # fmt: skip
@_OUT
@_VALIDATION
@_SHARDS
def cifar10(source: str | None, out: str, validation: bool, shards: int | None) -> None:
    """CIFAR-10: 50,000 training and 10,000 evaluation pictures of 32 x 32.

    PATH is cifar-10-batches-py, the binary version, or the archive of either. Each image is 3072
    bytes, depth-major as published.

    \b
    Example:
      phalanx dataset cifar10 --source cifar-10-batches-py --out data/cifar10 --validation
    """
    from phalanx.data.datasets import convert_cifar10  # noqa: PLC0415

    with _progress() as progress:
        counts = convert_cifar10(
            source, out, validation=validation, shards=shards, progress=progress
        )
    _report(out, counts)


@command.command()
@click.option("--source", metavar="DIR", help="The folder with the four published files; left out, "
              "they are downloaded and their MD5s checked.")  # fmt: skip
@_OUT
@_VALIDATION
@_SHARDS
def mnist(source: str | None, out: str, validation: bool, shards: int | None) -> None:
    """MNIST: 60,000 training and 10,000 evaluation digits of 28 x 28.

    \b
    Example:
      phalanx dataset mnist --source mnist/ --out data/mnist
    """
    from phalanx.data.datasets import convert_mnist  # noqa: PLC0415

    with _progress() as progress:
        counts = convert_mnist(source, out, validation=validation, shards=shards, progress=progress)
    _report(out, counts)


@command.command()
@click.option("--count", "-n", type=click.IntRange(min=1), default=10_000, show_default=True,
              help="Training pictures.")  # fmt: skip
@click.option(
    "--eval-count", type=click.IntRange(min=1), help="Evaluation pictures: a fifth of it."
)
@click.option("--classes", type=click.IntRange(min=2), default=10, show_default=True)
@click.option("--size", type=click.IntRange(min=4), default=32, show_default=True,
              help="Height and width.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@_OUT
@_SHARDS
def synthetic(
    count: int,
    eval_count: int | None,
    classes: int,
    size: int,
    seed: int,
    out: str,
    shards: int | None,
) -> None:
    """Pictures made up on the spot, which a small network learns: for trying things out.

    \b
    Example:
      phalanx dataset synthetic --count 5000 --out data/synthetic
    """
    from phalanx.data.datasets import make_synthetic  # noqa: PLC0415

    counts = make_synthetic(
        out,
        count=count,
        evaluation=eval_count,
        classes=classes,
        size=size,
        seed=seed,
        shards=shards,
    )
    _report(out, counts)


def _report(out: str, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        click.echo(f"{count}\t{out.rstrip('/')}/{name}.tfrecord")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar for downloads on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import DownloadColumn, Progress  # noqa: PLC0415

    with Progress(*Progress.get_default_columns(), DownloadColumn(),
                  console=Console(stderr=True), transient=True) as bar:  # fmt: skip
        task = bar.add_task("downloading", total=None, visible=False)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None, visible=True)

        yield advance
