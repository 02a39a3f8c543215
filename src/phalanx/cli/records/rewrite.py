"""The commands of `phalanx records` that write the same records to other files."""

from contextlib import suppress
from typing import Any

import click

from phalanx import records
from phalanx.cli.option_factories import count_option
from phalanx.cli.printing import echo
from phalanx.cli.progress import show_progress
from phalanx.cli.records.view import show_bytes
from phalanx.records import file_operations

FILES = click.argument("files", nargs=-1, required=True, metavar="FILE...")
OUT = click.option("--out", "-o", required=True, metavar="FILE", help="The file to write.")


@click.command()
@FILES
@click.option("--out", "-o", metavar="FILE", help="Name the shards FILE-00000-of-N.tfrecord.")
@count_option("--shards", text="Split into this many files.")
@click.option(
    "--share",
    "shares",
    multiple=True,
    metavar="FILE=SHARE",
    help="Write this share of the records to FILE. Can be repeated.",
)
def split(
    files: tuple[str, ...], out: str | None, shards: int | None, shares: tuple[str, ...]
) -> None:
    """Split files into shards of equal size, or by shares.

    \b
    Example:
      phalanx records split all.tfrecord --shards 10 --out data/train.tfrecord
      phalanx records split all.tfrecord --share train.tfrecord=0.9 --share eval.tfrecord=0.1
    """
    if (shards is None) == (not shares) or (shards is not None and out is None):
        raise click.UsageError("give --shards with --out, or --share for each file")
    parsed = dict(map(_parse_share, shares))
    with show_bytes(records.expand(files), "splitting") as advance:
        if shards is not None and out is not None:
            written = file_operations.split(files, out, shards, progress=advance)
        else:
            written = file_operations.split_by_shares(files, parsed, progress=advance)
    for path, number in written:
        echo(f"{number}\t{path}")


def _parse_share(text: str) -> tuple[str, float]:
    path, _, share = text.rpartition("=")
    with suppress(ValueError):
        if path:
            return path, float(share)
    raise click.UsageError(f"--share {text}: write it as in --share train.tfrecord=0.9")


@click.command()
@FILES
@OUT
def merge(files: tuple[str, ...], out: str) -> None:
    """Write the records of many files to one file, in order.

    \b
    Example:
      phalanx records merge 'data/train-*.tfrecord' --out train.tfrecord
    """
    with show_bytes(records.expand(files), "merging") as advance:
        number = file_operations.merge(files, out, progress=advance)
    echo(f"{number:,} records written to {out}")


@click.command()
@FILES
@OUT
@click.option("--seed", type=int, help="The seed of the random order.")
@count_option("--shards", text="Number of files to write.")
@count_option("--memory", text="Megabytes to hold in memory before files are used.", default=512)
def shuffle(
    files: tuple[str, ...], out: str, seed: int | None, shards: int | None, memory: int
) -> None:
    """Write the records in random order. They need not fit in memory.

    \b
    Example:
      phalanx records shuffle 'data/*.tfrecord' --out shuffled.tfrecord --shards 10 --seed 1
    """
    with show_bytes(records.expand(files), "shuffling") as advance:
        number = file_operations.shuffle(
            files, out, seed=seed, shards=shards, memory=memory << 20, progress=advance
        )
    echo(f"{number:,} records written to {out}")


@click.command()
@click.argument("source")
@OUT
@click.option("--from", "source_format", help="Format of SOURCE  [default: by its name]")
@click.option("--to", "out_format", help="Format of the output  [default: by its name]")
@count_option("--shards", text="Number of TFRecord files to write.")
@click.option("--image", metavar="FEATURE", help="The feature that contains the images.")
def convert(
    source: str, out: str, source_format: str | None, out_format: str | None, **options: Any
) -> None:
    """Convert between TFRecord and Parquet, CSV, JSON lines or a folder of images.

    A folder of images has a folder for each label: flowers/rose/1.jpg, flowers/tulip/2.jpg.

    \b
    Example:
      phalanx records convert train.parquet --out train.tfrecord --shards 8
      phalanx records convert train.tfrecord --out train.jsonl
      phalanx records convert flowers/ --out flowers.tfrecord
    """
    from phalanx.records import convert as converter  # noqa: PLC0415

    formats = converter.FORMATS
    for name in (source_format, out_format):
        if name not in (None, *formats):
            raise click.UsageError(f"there is no format {name}: there are {', '.join(formats)}")
    with show_progress("converting", style="count") as update:
        number = converter.convert(
            source,
            out,
            source_format=source_format,
            out_format=out_format,
            progress=lambda count: update and update(advance=count),
            **options,
        )
    echo(f"{number:,} examples written to {out}")
