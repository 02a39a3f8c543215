"""`phalanx records`: inspect, verify, repair and convert TFRecord files."""

import json
import sys
from itertools import islice

import click

from phalanx import records
from phalanx.cli.command_group import CommandGroup
from phalanx.cli.option_factories import count_option
from phalanx.cli.printing import echo
from phalanx.cli.records import view
from phalanx.cli.records.rewrite import FILES, OUT, convert, merge, shuffle, split
from phalanx.cli.terminal import print_table
from phalanx.errors import DataError, RecordError
from phalanx.records.framing import walk
from phalanx.records.html import format_bytes
from phalanx.records.storage import file_size

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@click.group(cls=CommandGroup)
def command() -> None:
    """Inspect TFRecord files, verify and repair them, and convert them.

    FILE is a path, a quoted glob, or a URL such as gs://bucket/train-*.tfrecord.

    \b
    Example:
      phalanx records info 'data/train-*.tfrecord'
      phalanx records verify 'data/*.tfrecord'
    """


for _rewrite in (convert, merge, shuffle, split):
    command.add_command(_rewrite)


@command.command()
@FILES
def info(files: tuple[str, ...]) -> None:
    """Show the number, the sizes, the compression and the features of the records.

    \b
    Example:
      phalanx records info 'data/train-*.tfrecord'
    """
    paths = records.expand(files)
    sizes = view.SizeHistogram()
    rows = []
    with view.show_bytes(paths, "reading") as advance:
        for path in paths:
            compressions: list[records.Compression] = []
            before = sizes.count
            for part in walk(path, found=compressions):
                if isinstance(part, records.Damage):
                    raise part.error()
                sizes.add(part.spans.tolist()[1::2])
                advance(len(part.data))
            count = f"{sizes.count - before:,}"
            rows.append((path, count, format_bytes(file_size(path)), compressions[0].value))
    header = ("file", "records", "size", "compression")
    print_table(header, rows, numbers=("records", "size"))
    echo(f"\n{sizes.count:,} records in {len(paths)} file{'s' * (len(paths) > 1)}")
    if not sizes.count:
        return
    least, greatest = format_bytes(sizes.least), format_bytes(sizes.greatest)
    echo(f"record sizes {least} {sizes.draw()} {greatest}")
    try:
        summary = records.summarize(paths)
    except RecordError as error:
        echo(f"\nnot Examples: {error}")
    else:
        view.print_summary(summary)


@command.command()
@FILES
@count_option("--count", "-n", text="Number of examples.", default=5)
@_JSON
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
            echo(row_to_json(row))
            continue
        echo(f"record {number} ({format_bytes(len(messages[number]))})")
        for name, value in row.items():
            if value is not None:
                echo(f"  {name}: {view.format_value(value)}")


@command.command()
@FILES
@_JSON
@click.option("--save", metavar="FILE", help="Write the schema to FILE, such as data/schema.json.")
@count_option("--most", text="Read at most this many records.")
def schema(files: tuple[str, ...], as_json: bool, save: str | None, most: int | None) -> None:
    """Infer the schema of the Examples: types, shapes, missing values and ranges.

    Readers use a file schema.json beside the data.

    \b
    Example:
      phalanx records schema 'data/*.tfrecord' --save data/schema.json
    """
    summary = records.summarize(files, most=most)
    if not summary.records:
        raise DataError("there are no records")
    if as_json:
        echo(summary.schema.dumps(), nl=False)
    else:
        echo(f"{summary.records:,} records")
        view.print_summary(summary)
    if save:
        summary.schema.save(save)


@command.command()
@FILES
def count(files: tuple[str, ...]) -> None:
    """Count the records of each file.

    \b
    Example:
      phalanx records count 'data/*.tfrecord'
    """
    total = 0
    for path in (paths := records.expand(files)):
        total += (found := records.count_records(path))
        echo(f"{found}\t{path}")
    if len(paths) > 1:
        echo(f"{total}\ttotal")


@command.command()
@FILES
@count_option("--threads", text="Number of files to check in parallel.")
@_JSON
def verify(files: tuple[str, ...], threads: int | None, as_json: bool) -> None:
    """Check every checksum of every file, and report each damaged record.

    The exit code is 0 without damage, and 1 with damage.

    \b
    Example:
      phalanx records verify 'data/*.tfrecord'
    """
    paths = records.expand(files)
    with view.show_bytes(paths, "verifying") as advance:
        reports = records.verify_all(paths, threads=threads, progress=advance)
    damaged = [report for report in reports if not report.is_sound]
    if as_json:
        for report in reports:
            echo(json.dumps(_as_dict(report)))
    else:
        for report in reports:
            for damage in report.damage:
                echo(str(damage))
        total = sum(report.records for report in reports)
        size = format_bytes(sum(report.size for report in reports))
        suffix = f"; {len(damaged)} damaged" if damaged else ""
        echo(f"{total:,} sound records in {len(reports)} files ({size}){suffix}")
        for report in reports:
            if report.size == 0:
                echo(f"{report.path} is empty")
        if damaged:
            path = damaged[0].path
            echo(f"save the rest with: phalanx records repair {path} --out NEW")
    sys.exit(1 if damaged else 0)


@command.command()
@click.argument("file")
@OUT
def repair(file: str, out: str) -> None:
    """Write the intact records of a damaged FILE to a new file, and report what was dropped.

    \b
    Example:
      phalanx records repair train.tfrecord --out train-repaired.tfrecord
    """
    path, *others = records.expand(file)
    if others:
        raise DataError(f"{file} is {1 + len(others)} files: repair one at a time")
    with view.show_bytes([path], "repairing") as advance:
        report = records.repair(path, out, progress=advance)
    for damage in report.damage:
        echo(f"dropped {format_bytes(damage.size)}: {damage}")
    suffix = "" if report.damage else "; nothing was damaged"
    echo(f"{report.records:,} records written to {out}{suffix}")


@command.command()
@FILES
def index(files: tuple[str, ...]) -> None:
    """Write the offset of each record to FILE.index, beside each file.

    An input pipeline then starts without reading the files first.

    \b
    Example:
      phalanx records index 'data/train-*.tfrecord'
    """
    for path in records.expand(files):
        built = records.RecordIndex.build(path)
        echo(f"{len(built)}\t{built.save()}")


def _as_dict(report: records.Report) -> dict[str, object]:
    damage = [
        {"index": each.index, "offset": each.offset, "bytes": each.size, "reason": each.reason}
        for each in report.damage
    ]
    return {"file": report.path, "records": report.records, "bytes": report.size, "damage": damage}
