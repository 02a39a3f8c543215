"""`phalanx records`: look at TFRecord files, check them, mend them, and make others of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import click

from phalanx import records
from phalanx.errors import DataError, RecordError
from phalanx.records.framing import walk
from phalanx.records.storage import file_size

_BARS = "▁▂▃▄▅▆▇█"
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
    sizes: list[int] = []
    lines = []
    with _progress(paths, "reading") as advance:
        for path in paths:
            compressions: list[records.Compression] = []
            count = 0
            for part in walk(path, found=compressions):
                if isinstance(part, records.Damage):
                    raise RecordError(part.path, part.index, part.offset, part.reason)
                lengths = part.spans.tolist()[1::2]
                sizes += lengths
                count += len(lengths)
                advance(len(part.data))
            lines.append((path, f"{count:,}", _bytes(file_size(path)), compressions[0].value))
    click.echo(_table(("file", "records", "size", "compression"), lines))
    if not sizes:
        click.echo("\nno records")
        return
    click.echo(f"\n{len(sizes):,} records in {len(paths)} file{'s' * (len(paths) > 1)}")
    click.echo(f"record sizes {_bytes(min(sizes))} {_histogram(sizes)} {_bytes(max(sizes))}")
    _echo_schema(records.summarize(paths))


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
        click.echo(f"record {number} ({_bytes(len(messages[number]))})")
        for name, value in row.items():
            if value is not None:
                click.echo(f"  {name}: {_show(value)}")


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
        _echo_schema(summary)
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
    with _progress(paths, "verifying") as advance:
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
        size = _bytes(sum(report.size for report in reports))
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
    [path] = records.expand(file)
    with _progress([path], "repairing") as advance:
        report = records.repair(path, out, progress=advance)
    for damage in report.damage:
        click.echo(f"dropped {_bytes(damage.size)}: {damage}")
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
    from phalanx.records.arrange import split as deal  # noqa: PLC0415
    from phalanx.records.arrange import split_by_shares  # noqa: PLC0415

    if (shards is None) == (not shares) or (shards is not None and out is None):
        raise click.UsageError("give --shards with --out, or --share for each file")
    with _progress(records.expand(files), "splitting") as advance:
        if shards is not None and out is not None:
            written = deal(files, out, shards, progress=advance)
        else:
            written = split_by_shares(files, _parse_shares(shares), progress=advance)
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
    from phalanx.records.arrange import merge as merge_files  # noqa: PLC0415

    with _progress(records.expand(files), "merging") as advance:
        number = merge_files(files, out, progress=advance)
    click.echo(f"{number:,} records written to {out}")


@command.command()
@_FILES
@_OUT
@click.option("--seed", type=int, help="The same seed gives the same order.")
@click.option("--shards", type=click.IntRange(min=1), help="Write so many files.")
@click.option("--memory", type=click.IntRange(min=1), default=512, show_default=True,
              help="Megabytes of records to hold; more are shuffled through temporary files.")  # fmt: skip
def shuffle(
    files: tuple[str, ...], out: str, seed: int | None, shards: int | None, memory: int
) -> None:
    """Write the records in random order; they may be more than fit in memory.

    \b
    Example:
      phalanx records shuffle 'data/*.tfrecord' --out shuffled.tfrecord --shards 10 --seed 1
    """
    from phalanx.records.arrange import shuffle as shuffle_files  # noqa: PLC0415

    with _progress(records.expand(files), "shuffling") as advance:
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
    number = convert_files(
        source, out, source_format=source_format, out_format=out_format, shards=shards, image=image
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


@contextmanager
def _progress(paths: list[str], what: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=sum(map(file_size, paths)))
        yield lambda done: progress.advance(task, done)


def _echo_schema(summary: records.Summary) -> None:
    lines = []
    for found in summary.features:
        share = f"{100 * found.missing / summary.records:.3g}%" if found.missing else "-"
        what = "bytes " if found.feature.kind is records.Kind.BYTES else ""
        values = "-" if found.least is None else f"{what}{found.least:g} to {found.greatest:g}"
        lengths = str(found.shortest)
        if found.shortest != found.longest:
            lengths += f" to {found.longest}"
        lines.append((found.feature.name, found.feature.describe(), share, lengths, values))
    if lines:
        click.echo("\n" + _table(("feature", "type", "missing", "values each", "range"), lines))
    else:
        click.echo("\nno features: these records are not Examples, or empty ones")


def _table(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    rows = [header, *lines]
    widths = [max(len(row[place]) for row in rows) for place in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _histogram(sizes: list[int], bars: int = 24) -> str:
    low, high = min(sizes), max(sizes)
    if low == high:
        return _BARS[-1]
    counts = [0] * bars
    for size in sizes:
        counts[min((size - low) * bars // (high - low), bars - 1)] += 1
    top = max(counts)
    return "".join(" " if not n else _BARS[(n * (len(_BARS) - 1) + top - 1) // top] for n in counts)


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            break
        size /= 1000
    else:
        unit = "TB"
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def _show(value: Any) -> str:
    from phalanx.records.images import identify_image  # noqa: PLC0415

    if isinstance(value, bytes):
        image = identify_image(value)
        if image:
            return f"{image} image ({_bytes(len(value))})"
        if len(value) <= 60 and value.isascii() and value.decode().isprintable():
            return f'"{value.decode()}"'
        return f"{_bytes(len(value))}: {value[:16].hex(' ')}{' …' if len(value) > 16 else ''}"
    if isinstance(value, list):
        shown = ", ".join(_show(item) for item in value[:8])
        return f"[{shown}{', …' if len(value) > 8 else ''}] ({len(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)



