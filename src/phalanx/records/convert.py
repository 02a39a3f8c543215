"""Conversion of Examples from and to Parquet, CSV, JSON lines and directories of images.

convert("train.parquet", "train.tfrecord")
convert("train.tfrecord", "train.jsonl")
convert("flowers/", "flowers.tfrecord")     # flowers/rose/1.jpg, flowers/tulip/2.jpg, ...
"""

import base64
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from phalanx.errors import DataError
from phalanx.records.arrow import BATCH_SIZE, to_batches
from phalanx.records.example import read_batches, write_examples
from phalanx.records.images import identify_image
from phalanx.records.schema import Schema, find_schema
from phalanx.records.storage import open_input, writing
from phalanx.records.storage.listing import expand
from phalanx.records.types import Progress, Row, Value

_RECORDS = re.compile(r"\.tfrecords?(-\d+-of-\d+)?(\.gz|\.zlib|\.zz|\.deflate)?$|-\d+-of-\d+$")
_IMAGES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"}
_ENDINGS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_LONGEST_NAME = 200
_LONG_VALUE = 1024
# JSON writes each of these as six characters.
_CONTROL_CHARACTERS = bytes(set(range(32)) - set(b"\t\n\r\b\f"))
FORMATS = ("tfrecord", "parquet", "csv", "jsonl", "images")


def format_of(path: str) -> str:
    """The format of a path, by its suffix; a directory, or a path that ends in /, is images."""
    if path.endswith("/") or Path(path).is_dir():
        return "images"
    if _RECORDS.search(path):
        return "tfrecord"
    try:
        return _ENDINGS[Path(path).suffix.lower()]
    except KeyError:
        raise DataError(
            f"the format of {path} is unknown: end it in .tfrecord, .parquet, .csv or .jsonl, "
            "in / for a directory of images, or name the format"
        ) from None


def convert(
    source: str,
    out: str,
    *,
    source_format: str | None = None,
    out_format: str | None = None,
    shards: int | None = None,
    image: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Convert a file, a glob or a directory, and return the number of examples.

    `image` names the feature to write to a directory of images, by default the first that holds
    images.
    """
    source_format = source_format or format_of(source)
    out_format = out_format or format_of(out)
    if source_format != "tfrecord" and out_format != "tfrecord":
        raise DataError(f"one of {source} and {out} must be TFRecord")
    if shards is not None and out_format != "tfrecord":
        raise DataError("only TFRecord files can be written in shards")
    count = 0

    def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            yield batch
            count += batch.num_rows
            if progress is not None:
                progress(batch.num_rows)

    if out_format == "tfrecord":
        return write_examples(out, count_rows(_READERS[source_format](source)), shards=shards)
    files = expand(source)
    schema = find_schema(files)
    batches = count_rows(read_batches(files, schema))
    if out_format == "images":
        _write_images(out, batches, image)
    else:
        with writing(out) as file:
            _WRITERS[out_format](file, batches, schema)
    return count


@contextmanager
def open_parquet(path: str) -> Iterator[pa.parquet.ParquetFile]:
    """Open a Parquet file; an error while it is read names the file."""
    with open_input(path) as file:
        try:
            yield pa.parquet.ParquetFile(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is not a Parquet file that can be read: {error}") from None


def _read_parquet(source: str) -> Iterator[pa.RecordBatch]:
    for path in expand(source):
        with open_parquet(path) as file:
            yield from file.iter_batches(batch_size=BATCH_SIZE)


def _read_csv(source: str) -> Iterator[pa.RecordBatch]:
    for path in expand(source):
        with open_input(path) as file:
            try:
                yield from pa.csv.open_csv(file)
            except pa.ArrowInvalid as error:
                raise DataError(f"{path} is not a CSV file with a header: {error}") from None


def _read_jsonl(source: str) -> Iterator[pa.RecordBatch]:
    for path in expand(source):
        with open_input(path) as file:
            lines = io.BufferedReader(cast(io.RawIOBase, file), 1 << 20)
            yield from to_batches(_parse_lines(path, lines))


def _parse_lines(path: str, lines: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}, is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}, is not an object but {type(row).__name__}")
        try:
            row = {name: _from_json(value) for name, value in row.items()}
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}, line {number}, has invalid base64: {error}") from None
        yield row


def _read_images(source: str) -> Iterator[pa.RecordBatch]:
    """Read a directory for each label, or one directory of images without labels."""
    root = Path(source)
    if not root.is_dir():
        raise DataError(f"there is no directory {source}")
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in _IMAGES)
    if not files:
        raise DataError(f"there are no images in {source}: looked for {', '.join(sorted(_IMAGES))}")
    names = sorted({path.parent.name for path in files if path.parent != root})
    labels = {name: number for number, name in enumerate(names)}
    rows = iter(files)
    while paths := list(islice(rows, 256)):
        columns: dict[str, list[Value]] = {
            "image": [path.read_bytes() for path in paths],
            "filename": [os.fspath(path.relative_to(root)).encode() for path in paths],
        }
        if labels:
            columns["label"] = [labels.get(path.parent.name) for path in paths]
            columns["label_name"] = [path.parent.name.encode() if path.parent != root else None
                                     for path in paths]  # fmt: skip
        yield pa.RecordBatch.from_pydict(columns)


def _write_parquet(file: BinaryIO, batches: Iterator[pa.RecordBatch], schema: Schema) -> None:
    with pa.parquet.ParquetWriter(file, schema.to_arrow()) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_csv(file: BinaryIO, batches: Iterator[pa.RecordBatch], schema: Schema) -> None:
    lists = [feature.name for feature in schema.features if feature.shape or feature.sequence]
    if lists:
        raise DataError(f"CSV holds single values, and these are lists: {', '.join(lists)}; "
                        "write Parquet or JSON lines")  # fmt: skip
    types = pa.schema([pa.field(f.name, pa.string() if f.type == pa.binary() else f.type)
                       for f in schema.to_arrow()])  # fmt: skip
    with pa.csv.CSVWriter(file, types) as writer:
        for batch in batches:
            try:
                writer.write_batch(batch.cast(types))
            except pa.ArrowInvalid as error:
                raise DataError(f"CSV holds text, and a feature holds other bytes ({error}); "
                                "write Parquet or JSON lines") from None  # fmt: skip


def _write_jsonl(file: BinaryIO, batches: Iterator[pa.RecordBatch], schema: Schema) -> None:
    for batch in batches:
        for row in batch.to_pylist():
            file.write(row_to_json(row).encode() + b"\n")


def row_to_json(row: Row) -> str:
    """An example as a line of JSON; bytes that are not text in UTF-8 become {"base64": "..."}."""
    return json.dumps({name: _to_json(value) for name, value in row.items()}, ensure_ascii=False)


def _to_json(value: Value) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        if not _is_binary(value):
            return value.decode()
    except UnicodeDecodeError:
        pass
    return {"base64": base64.b64encode(value).decode()}


def _is_binary(value: bytes) -> bool:
    """Whether a long value has so many control characters that base64 is shorter than text."""
    if len(value) < _LONG_VALUE:
        return False
    controls = len(value) - len(value.translate(None, _CONTROL_CHARACTERS))
    return 15 * controls > len(value)


def _from_json(value: Any) -> Value:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, dict) and list(value) == ["base64"]:
        return base64.b64decode(value["base64"], validate=True)
    return value.encode() if isinstance(value, str) else value


def _write_images(out: str, batches: Iterator[pa.RecordBatch], image: str | None) -> None:
    rows = (row for batch in batches for row in batch.to_pylist())
    for number, row in enumerate(rows):
        name = image or _find_image(row)
        info = identify_image(row.get(name) or b"")
        if info is None:
            raise DataError(f"feature {name!r} of example {number} holds no image")
        directory = Path(out) / _directory_name(row.get("label_name", row.get("label")))
        directory.mkdir(parents=True, exist_ok=True)
        ending = "jpg" if info.format == "jpeg" else info.format
        (directory / f"{number:06d}.{ending}").write_bytes(row[name])


def _directory_name(label: Value) -> str:
    """A label as the name of one directory, without unsafe characters."""
    if label is None:
        return ""
    text = label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
    name = re.sub(r"[^\w .-]", "_", text).strip(". ") or "_"
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{name.encode()[: _LONGEST_NAME - 17].decode(errors='ignore')}-{digest}"


def _find_image(row: Row) -> str:
    for name, value in row.items():
        if isinstance(value, bytes) and identify_image(value):
            return name
    raise DataError(f"no feature holds images in a known format: there are {', '.join(row)}")


_READERS: dict[str, Callable[[str], Iterator[pa.RecordBatch]]] = {
    "tfrecord": read_batches,
    "parquet": _read_parquet,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "images": _read_images,
}
_WRITERS: dict[str, Callable[[BinaryIO, Iterator[pa.RecordBatch], Schema], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}
