"""TFRecord files, beside the files of ArrayRecord, MosaicML Streaming and WebDataset.

Each reader returns the same records as bytes: all of them in order, and 20,000 in random order, 100
at a time. Every figure is the median of rounds in which the contestants take turns, on one core.
The ratios are of CPU time, because other work on the machine affects it less. What is not installed
is left out: `pip install array_record webdataset mosaicml-streaming` includes all.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from records import measure, result

SIZES = {"small": (200_000, 80, 160), "3kb": (50_000, 3072, 3072)}
TAKEN, AT_ONCE = 20_000, 100

Records = list[bytes]


def by_phalanx(directory: Path, records: Records) -> Any:
    from phalanx.records import RecordIndex, RecordWriter, read_records

    path = str(directory / "records.tfrecord")
    with RecordWriter(path) as writer:
        writer.write_all(records)
    return partial(read_records, path), RecordIndex.build(path).take


def by_array_record(directory: Path, records: Records) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    def write(name: str, group_size: int) -> Any:
        path = str(directory / name)
        writer = ArrayRecordWriter(path, f"group_size:{group_size}")
        for record in records:
            writer.write(record)
        writer.close()
        return ArrayRecordReader(path)

    # Its guide advises groups of one record for random access, and of many to read them in order.
    in_order, by_number = write("many.array_record", 1024), write("one.array_record", 1)
    return in_order.read_all, by_number.read


def by_streaming(directory: Path, records: Records) -> Any:
    import json

    from streaming import MDSWriter
    from streaming.base.format import reader_from_json

    with MDSWriter(out=str(directory / "mds"), columns={"record": "bytes"}) as writer:
        for record in records:
            writer.write({"record": record})
    index = json.loads((directory / "mds" / "index.json").read_text())
    shards = [reader_from_json(str(directory), "mds", shard) for shard in index["shards"]]
    places = [(shard, number) for shard in shards for number in range(len(shard))]

    def read(numbers: Iterable[int]) -> list[bytes]:
        return [shard[number]["record"] for shard, number in (places[i] for i in numbers)]

    return partial(read, range(len(records))), read


def by_webdataset(directory: Path, records: Records) -> Any:
    import webdataset

    path = directory / "records.tar"
    with tarfile.open(path, "w") as archive:
        for number, record in enumerate(records):
            entry = tarfile.TarInfo(f"{number:06}.record")
            entry.size = len(record)
            archive.addfile(entry, io.BytesIO(record))
    return partial(webdataset.WebDataset, str(path), shardshuffle=False), None


PEERS = {
    "array_record": by_array_record,
    "streaming": by_streaming,
    "webdataset": by_webdataset,
}


def main() -> None:
    import numpy as np

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    random = np.random.default_rng(0)
    for title, (count, smallest, largest) in SIZES.items():
        sizes = random.integers(smallest, largest + 1, count)
        records = [random.bytes(int(size)) for size in sizes]
        numbers = [int(number) for number in random.integers(0, count, TAKEN)]
        with tempfile.TemporaryDirectory() as name:
            in_order, by_number = {}, {}
            for peer, make in {"phalanx": by_phalanx, **PEERS}.items():
                directory = Path(name, peer)
                directory.mkdir()
                try:
                    read, take = make(directory, records)
                except ImportError as error:
                    print(f"  ({peer} is left out: {error})")
                    continue
                in_order[peer] = partial(_read_all, read, count)
                if take is not None:
                    by_number[peer] = partial(_take_all, take, numbers)
                    assert list(take(numbers[:3])) == [records[i] for i in numbers[:3]], peer
            for way, contestants in (("sequential", in_order), ("random", by_number)):
                print(f"{way}, {title}: {count:,} records of {smallest} to {largest} bytes")
                times = measure(contestants)
                for peer in contestants:
                    if peer != "phalanx":
                        ratio = times[peer] / times["phalanx"]
                        result(f"{way}-{title}-{peer}", ratio, f"x-{peer}", ">= 1")


def _read_all(read: Callable[[], Iterable[object]], count: int) -> None:
    assert sum(1 for _ in read()) == count


def _take_all(take: Callable[[list[int]], object], numbers: list[int]) -> None:
    for first in range(0, len(numbers), AT_ONCE):
        take(numbers[first : first + AT_ONCE])


if __name__ == "__main__":
    main()
