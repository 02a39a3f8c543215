"""`phalanx dataset`: write well-known datasets as TFRecord files."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli.command_group import CommandGroup
from phalanx.cli.option_factories import count_option
from phalanx.cli.printing import echo
from phalanx.cli.progress import show_progress

if TYPE_CHECKING:
    from phalanx.data.datasets import RecordNames

_OUT = click.option("--out", "-o", required=True, metavar="DIR", help="The directory to write to.")
_SHARDS = count_option("--shards", text="Number of files per split.")
_SUFFIX = click.option(
    "--suffix",
    default="tfrecord",
    metavar="NAME",
    show_default=True,
    help="How the names of the files end; TensorFlow 1 programs often read train.tfrecords.",
)
_IMAGE = click.option(
    "--image-feature",
    default="image",
    metavar="NAME",
    show_default=True,
    help="The feature with the image; TensorFlow 1 programs often read image_raw.",
)
_VALIDATION = click.option(
    "--validation", is_flag=True, help="Split 10,000 training examples off for validation."
)


@click.group(cls=CommandGroup)
def command() -> None:
    """Write well-known datasets as TFRecord files, with `image` and `label` in each example.

    \b
    Example:
      phalanx dataset cifar10 --source cifar-10-python.tar.gz --out data/cifar10
      phalanx dataset mnist --suffix tfrecords --image-feature image_raw --out data/mnist
      phalanx dataset synthetic --count 5000 --out data/synthetic
    """


@command.command()
@click.option(
    "--source",
    metavar="PATH",
    help="The published folder or archive  [default: download it and check its MD5]",
)
@_OUT
@_VALIDATION
@_SHARDS
@_SUFFIX
@_IMAGE
def cifar10(**options: Any) -> None:
    """Write CIFAR-10: 50,000 training and 10,000 evaluation images of 32 x 32 pixels.

    PATH is cifar-10-batches-py, the binary version, or the archive of either. Each image has 3072
    bytes in the published order, with the channel as the first dimension.

    \b
    Example:
      phalanx dataset cifar10 --source cifar-10-batches-py --out data/cifar10 --validation
    """
    from phalanx.data.datasets import convert_cifar10  # noqa: PLC0415

    _download(convert_cifar10, **options)


@command.command()
@click.option(
    "--source",
    metavar="DIR",
    help="The folder with the four published files  [default: download and check their MD5]",
)
@_OUT
@_VALIDATION
@_SHARDS
@_SUFFIX
@_IMAGE
def mnist(**options: Any) -> None:
    """Write MNIST: 60,000 training and 10,000 evaluation digits of 28 x 28 pixels.

    \b
    Example:
      phalanx dataset mnist --source mnist/ --out data/mnist
    """
    from phalanx.data.datasets import convert_mnist  # noqa: PLC0415

    _download(convert_mnist, **options)


@command.command()
@count_option("--count", "-n", text="Number of training images.", default=10_000)
@count_option("--eval-count", "evaluation", text="Number of evaluation images: a fifth by default.")
@count_option("--classes", text="Number of classes.", default=10, least=2)
@count_option("--size", text="Height and width in pixels.", default=32, least=4)
@count_option("--seed", text="The seed of the random images.", default=0, least=0)
@_OUT
@_SHARDS
@_SUFFIX
@_IMAGE
def synthetic(out: str, suffix: str, image_feature: str, **options: Any) -> None:
    """Generate images that a small network learns quickly, for tests and demonstrations.

    \b
    Example:
      phalanx dataset synthetic --count 5000 --out data/synthetic
    """
    from phalanx.data.datasets import RecordNames, make_synthetic  # noqa: PLC0415

    names = RecordNames(suffix, image_feature)
    _print_counts(out, names, make_synthetic(out, names=names, **options))


def _print_counts(out: str, names: "RecordNames", counts: dict[str, int]) -> None:
    for split, count in counts.items():
        echo(f"{count}\t{out.rstrip('/')}/{names.file(split)}")


def _download(
    convert: Callable[..., dict[str, int]],
    out: str,
    suffix: str,
    image_feature: str,
    **options: Any,
) -> None:
    from phalanx.data.datasets import RecordNames  # noqa: PLC0415

    names = RecordNames(suffix, image_feature)
    with show_progress("downloading", style="download") as update:
        progress = update and (
            lambda done, total: update(completed=done, total=total or None, visible=True)
        )
        counts = convert(out=out, progress=progress, names=names, **options)
    _print_counts(out, names, counts)
