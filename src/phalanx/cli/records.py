"""`phalanx records`: look at TFRecord files, check them, mend them, and make others of them."""

from __future__ import annotations

import json
import sys
from itertools import islice

import click

from phalanx import records
from phalanx.cli.records_view import (
    Sizes,
    echo_summary,
    format_bytes,
    format_table,
    format_value,
    show_count,
    show_progress,
)
from phalanx.errors import DataError, RecordError
from phalanx.records.framing import walk
from phalanx.records.storage import file_size

_FILES = click.argument("files", nargs=-1, required=True, metavar="FILE...")
_OUT = click.option("--out", "-o", required=True, metavar="FILE", help="The file to write.")


@click.group()
def command() -> None:
    """Look at TFRecord files, check and mend them, and convert them.

    FILE is a path, a glob in quotes, or an address such as gs://bucket/train-*.tfrecord.

    \b
    Example:
      phalanx records info 'data/train-*.tfrecord'
      phalanx records verify 'data/*.tfrecord'
    """


@command.command()
@_FILES
def info(files: tuple[str, ...]) -> None:
    """Show counts, sizes, compression and the features.

    \b
    Example:
      phalanx records info 'data/train-*.tfrecord'
    """
    paths = records.expand(files)
    sizes = Sizes()
    lines = []
    with show_progress(paths, "reading") as advance:
        for path in paths:
            compressions: list[records.Compression] = []
            before = sizes.count
            for part in walk(path, found=compressions):
                if isinstance(part, records.Damage):
                    raise part.error()
                sizes.add(part.spans.tolist()[1::2])
                advance(len(part.data))
            count = f"{sizes.count - before:,}"
            lines.append((path, count, format_bytes(file_size(path)), compressions[0].value))
    click.echo(format_table(("file", "records", "size", "compression"), lines))
    click.echo(f"\n{sizes.count:,} records in {len(paths)} file{'s' * (len(paths) > 1)}")
    if not sizes.count:
        return
    click.echo(
        f"record sizes {format_bytes(sizes.least)} {sizes.draw()} {format_bytes(sizes.greatest)}"
    )
    try:
        summary = records.summarize(paths)
    except RecordError as error:
        click.echo(f"\nnot Examples: {error}")
    else:
        echo_summary(summary)


@command.command()
@_FILES
@click.option("--count", "-n", type=click.IntRange(min=1), default=5, help="How many examples.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each example.")
def head(files: tuple[str, ...], count: int, as_json: bool) -> None:
    """Show the first examples.

    \b
    Example:
      phalanx records head -n 2 --json data/train.tfrecord
    """
    from phalanx.records.convert import row_to_json  # noqa: PLC0415

    messages = list(islice(records.read_records(files), count))
    if not messages:
        raise DataError("there are no records")
    for number, row in enumerate(records.decode_examples(messages).to_pylist()):
        if as_json:
            click.echo(row_to_json(row))
            continue
        click.echo(f"record {number} ({format_bytes(len(messages[number]))})")
        for name, value in row.items():
            if value is not None:
                click.echo(f"  {name}: {format_value(value)}")


@command.command()
@_FILES
@click.option("--json", "as_json", is_flag=True, help="Print the schema as JSON.")
@click.option("--save", metavar="FILE", help="Write it there: schema.json beside the data is used.")
@click.option("--most", type=click.IntRange(min=1), help="Read only so many records.")
def schema(files: tuple[str, ...], as_json: bool, save: str | None, most: int | None) -> None:
    """Find out what the Examples hold: kinds, shapes, missing share, ranges.

    \b
    Example:
      phalanx records schema 'data/*.tfrecord' --save data/schema.json
    """
    summary = records.summarize(files, most=most)
    if not summary.records:
        raise DataError("there are no records")
    if as_json:
        click.echo(summary.schema.dumps(), nl=False)
    else:
        click.echo(f"{summary.records:,} records")
        echo_summary(summary)
    if save:
        summary.schema.save(save)


@command.command()
@_FILES
def count(files: tuple[str, ...]) -> None:
    """Count the records of each file.

    \b
    Example:
      phalanx records count 'data/*.tfrecord'
    """
    paths = records.expand(files)
    total = 0
    for path in paths:
        found = records.count_records(path)
        total += found
        click.echo(f"{found}\t{path}")
    if len(paths) > 1:
        click.echo(f"{total}\ttotal")


@command.command()
@_FILES
@click.option("--threads", type=click.IntRange(min=1), help="Files checked at the same time.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each file.")
def verify(files: tuple[str, ...], threads: int | None, as_json: bool) -> None:
    """Check every checksum of every file; name each damaged record.

    The exit code is 0 if all is sound, 1 if there is damage.

    \b
    Example:
      phalanx records verify 'data/*.tfrecord'
    """
    paths = records.expand(files)
    with show_progress(paths, "verifying") as advance:
        reports = records.verify_all(paths, threads=threads, progress=advance)
    for report in reports:
        if as_json:
            damage = [{"index": d.index, "offset": d.offset, "bytes": d.size, "reason": d.reason}
                      for d in report.damage]  # fmt: skip
            click.echo(json.dumps({"file": report.path, "records": report.records,
                                   "bytes": report.size, "damage": damage}))  # fmt: skip
            continue
        for damage_found in report.damage:
            click.echo(str(damage_found))
    bad = [report for report in reports if not report.is_sound]
    if not as_json:
        total = sum(report.records for report in reports)
        size = format_bytes(sum(report.size for report in reports))
        click.echo(f"{total:,} sound records in {len(reports)} files ({size})"
                   + (f"; {len(bad)} damaged" if bad else ""))  # fmt: skip
        for report in reports:
            if report.size == 0:
                click.echo(f"{report.path} is empty")
    if bad:
        if not as_json:
            click.echo(f"save the rest with: phalanx records repair {bad[0].path} --out NEW")
        sys.exit(1)


@command.command()
@click.argument("file")
@_OUT
def repair(file: str, out: str) -> None:
    """Write the sound records of a damaged FILE to a new one, and say what was dropped.

    \b
    Example:
      phalanx records repair train.tfrecord --out train-repaired.tfrecord
    """
    path, *others = records.expand(file)
    if others:
        raise DataError(f"{file} is {1 + len(others)} files: repair one at a time")
    with show_progress([path], "repairing") as advance:
        report = records.repair(path, out, progress=advance)
    for damage in report.damage:
        click.echo(f"dropped {format_bytes(damage.size)}: {damage}")
    click.echo(f"{report.records:,} records written to {out}"
               + ("" if report.damage else "; nothing was damaged"))  # fmt: skip


@command.command()
@_FILES
@click.option("--out", "-o", metavar="FILE", help="Name of the shards: FILE-00000-of-N.tfrecord.")
@click.option("--shards", type=click.IntRange(min=1), help="Deal the records out to so many files.")
@click.option("--share", "shares", multiple=True, metavar="FILE=SHARE",
              help="Give FILE this share of the records; repeat it.")  # fmt: skip
def split(
    files: tuple[str, ...], out: str | None, shards: int | None, shares: tuple[str, ...]
) -> None:
    """Split files: into shards of equal size, or by shares.

    \b
    Example:
      phalanx records split all.tfrecord --shards 10 --out data/train.tfrecord
      phalanx records split all.tfrecord --share train.tfrecord=0.9 --share eval.tfrecord=0.1
    """
    from phalanx.records.file_operations import split as deal  # noqa: PLC0415
    from phalanx.records.file_operations import split_by_shares  # noqa: PLC0415

    if (shards is None) == (not shares) or (shards is not None and out is None):
        raise click.UsageError("give --shards with --out, or --share for each file")
    parsed = _parse_shares(shares)
    with show_progress(records.expand(files), "splitting") as advance:
        if shards is not None and out is not None:
            written = deal(files, out, shards, progress=advance)
        else:
            written = split_by_shares(files, parsed, progress=advance)
    for path, number in written:
        click.echo(f"{number}\t{path}")


def _parse_shares(shares: tuple[str, ...]) -> dict[str, float]:
    parsed = {}
    for text in shares:
        path, _, share = text.rpartition("=")
        try:
            parsed[path] = float(share)
        except ValueError:
            path = ""
        if not path:
            raise click.UsageError(f"--share {text}: write it as in --share train.tfrecord=0.9")
    return parsed


@command.command()
@_FILES
@_OUT
def merge(files: tuple[str, ...], out: str) -> None:
    """Write the records of many files to one, in their order.

    \b
    Example:
      phalanx records merge 'data/train-*.tfrecord' --out train.tfrecord
    """
    from phalanx.records.file_operations import merge as merge_files  # noqa: PLC0415

    with show_progress(records.expand(files), "merging") as advance:
        number = merge_files(files, out, progress=advance)
    click.echo(f"{number:,} records written to {out}")


@command.command()
@_FILES
@_OUT
@click.option("--seed", type=int, help="The same seed gives the same order.")
@click.option("--shards", type=click.IntRange(min=1), help="Write so many files.")
@click.option("--memory", type=click.IntRange(min=1), default=512, show_default=True,
              help="Megabytes to hold; more records go through temporary files.")  # fmt: skip
def shuffle(
    files: tuple[str, ...], out: str, seed: int | None, shards: int | None, memory: int
) -> None:
    """Write the records in random order; they may be more than fit in memory.

    \b
    Example:
      phalanx records shuffle 'data/*.tfrecord' --out shuffled.tfrecord --shards 10 --seed 1
    """
    from phalanx.records.file_operations import shuffle as shuffle_files  # noqa: PLC0415

    with show_progress(records.expand(files), "shuffling") as advance:
        number = shuffle_files(
            files, out, seed=seed, shards=shards, memory=memory << 20, progress=advance
        )
    click.echo(f"{number:,} records written to {out}")


@command.command()
@click.argument("source")
@_OUT
@click.option("--from", "source_format", help="Format of SOURCE, if its name does not say it.")
@click.option("--to", "out_format", help="Format of the output, if its name does not say it.")
@click.option("--shards", type=click.IntRange(min=1), help="Write so many TFRecord files.")
@click.option("--image", metavar="FEATURE", help="The feature that holds pictures.")
def convert(
    source: str,
    out: str,
    source_format: str | None,
    out_format: str | None,
    shards: int | None,
    image: str | None,
) -> None:
    """Convert between TFRecord and Parquet, CSV, JSON lines or a folder of images.

    A folder of images has a folder for each label: flowers/rose/1.jpg, flowers/tulip/2.jpg.

    \b
    Example:
      phalanx records convert train.parquet --out train.tfrecord --shards 8
      phalanx records convert train.tfrecord --out train.jsonl
      phalanx records convert flowers/ --out flowers.tfrecord
    """
    from phalanx.records.convert import FORMATS  # noqa: PLC0415
    from phalanx.records.convert import convert as convert_files  # noqa: PLC0415

    for name in (source_format, out_format):
        if name not in (None, *FORMATS):
            raise click.UsageError(f"there is no format {name}: there are {', '.join(FORMATS)}")
    with show_count("converting") as advance:
        number = convert_files(
            source,
            out,
            source_format=source_format,
            out_format=out_format,
            shards=shards,
            image=image,
            progress=advance,
        )
    click.echo(f"{number:,} examples written to {out}")


@command.command()
@_FILES
def index(files: tuple[str, ...]) -> None:
    """Save where each record begins beside each file, as FILE.index.

    Input pipelines then start without reading the files first.

    \b
    Example:
      phalanx records index 'data/train-*.tfrecord'
    """
    for path in records.expand(files):
        built = records.RecordIndex.build(path)
        click.echo(f"{len(built)}\t{built.save()}")
