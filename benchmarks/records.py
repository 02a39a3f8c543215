"""TFRecord files, compared with TensorFlow, upb and, if installed, `tfrecord` and `array_record`.

Every figure is the median of rounds in which the contestants take turns. All run in this process on
one core, so that CPU time and wall time agree. The ratios are of CPU time, because other work on
the machine affects it less.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROUNDS = 5
SMALL, LARGE = 200_000, 50_000


Times = dict[str, float]


def measure(contestants: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> Times:
    """Return the median CPU seconds of each contestant, and its wall time as `NAME wall`."""
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            cpu_start, wall_start = time.process_time(), time.perf_counter()
            run()
            cpu[name].append(time.process_time() - cpu_start)
            wall[name].append(time.perf_counter() - wall_start)
    for name in contestants:
        print(f"  {name:24} {statistics.median(cpu[name]):8.3f} s CPU "
              f"{statistics.median(wall[name]):8.3f} s wall")  # fmt: skip
    walls = {f"{name} wall": statistics.median(times) for name, times in wall.items()}
    return walls | {name: statistics.median(times) for name, times in cpu.items()}


def result(name: str, value: float, unit: str, goal: str) -> None:
    print(f"RESULT {name} {value:.3g} {unit} goal {goal}", flush=True)


def small_columns() -> dict[str, object]:
    import numpy as np

    random = np.random.default_rng(0)
    words = [b"news", b"sports", b"weather", b"science", b"travel", b"music"]
    return {
        "user_id": random.integers(0, 1_000_000, SMALL),
        "item_id": random.integers(0, 50_000, SMALL),
        "hour": random.integers(0, 24, SMALL),
        "clicked": random.integers(0, 2, SMALL),
        "price": random.random(SMALL, dtype=np.float32),
        "discount": random.random(SMALL, dtype=np.float32),
        "rating": random.random(SMALL, dtype=np.float32),
        "category": [words[i] for i in random.integers(0, len(words), SMALL)],
        "country": [b"country-%d" % i for i in random.integers(0, 200, SMALL)],
        "history": [list(range(i)) for i in random.integers(0, 5, SMALL)],
    }


TFRECORD = """
import sys, time
from tfrecord.reader import tfrecord_loader
started = time.process_time()
for example in tfrecord_loader(sys.argv[1], None):
    pass
print(time.process_time() - started)
"""


def time_tfrecord(path: str) -> float | None:
    """Time the package `tfrecord` in its own process, because it conflicts with TensorFlow."""
    ran = subprocess.run(
        [sys.executable, "-c", TFRECORD, path], check=False, capture_output=True, text=True
    )
    if "No module named" in ran.stderr:
        print("  (pip install tfrecord to include it)")
        return None
    print(f"  {'tfrecord':24} {float(ran.stdout):8.3f} s CPU")
    return float(ran.stdout)


def decode(directory: Path) -> None:
    import numpy as np
    import tensorflow as tf

    from phalanx.records import infer_schema, read_batches, write_examples

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1

    def by_tensorflow(path: str, spec: dict[str, object]) -> Callable[[], object]:
        def run() -> None:
            dataset = tf.data.TFRecordDataset(path).batch(1000)
            dataset = dataset.map(lambda batch: tf.io.parse_example(batch, spec))
            for _ in dataset.with_options(options):
                pass

        return run

    def by_phalanx(path: str) -> Callable[[], object]:
        schema = infer_schema(path)
        return lambda: sum(batch.num_rows for batch in read_batches(path, schema))

    fixed, strings = tf.io.FixedLenFeature, tf.string
    small, large = str(directory / "small.tfrecord"), str(directory / "large.tfrecord")
    write_examples(small, small_columns())
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (LARGE, 3072), np.uint8)
    write_examples(large, {"image": [row.tobytes() for row in pixels],
                           "label": random.integers(0, 10, LARGE)})  # fmt: skip
    spec = {name: fixed([], tf.int64) for name in ("user_id", "item_id", "hour", "clicked")}
    spec |= {name: fixed([], tf.float32) for name in ("price", "discount", "rating")}
    spec |= {name: fixed([], strings) for name in ("category", "country")}
    spec["history"] = tf.io.RaggedFeature(tf.int64)
    for path, title, goal, wanted in (
        (small, "decode-small", ">= 8", spec),
        (
            large,
            "decode-3kb",
            ">= 1.2",
            {"image": fixed([], strings), "label": fixed([], tf.int64)},
        ),
    ):
        print(
            f"{title}: Examples to columns, TensorFlow in batches of 1000, Phalanx of one megabyte"
        )
        contestants = {"tensorflow": by_tensorflow(path, wanted), "phalanx": by_phalanx(path)}
        for run in contestants.values():
            run()
        times = measure(contestants)
        result(title, times["tensorflow"] / times["phalanx"], "x-tensorflow", goal)
        ratio = times["tensorflow wall"] / times["phalanx wall"]
        result(f"{title}-wall", ratio, "x-tensorflow", goal)
        slow = time_tfrecord(path)
        if slow is not None:
            result(f"{title}-tfrecord", slow / times["phalanx"], "x-tfrecord", ">= 1")


def encode() -> None:
    import pyarrow as pa
    import tensorflow as tf

    from phalanx.records import encode_batch

    count = 20_000
    columns = {name: values[:count] for name, values in small_columns().items()}  # type: ignore[index]
    table = pa.table(columns)
    rows = table.to_pylist()
    train = tf.train

    def by_upb() -> None:
        for row in rows:
            example = train.Example()
            feature = example.features.feature
            for name, value in row.items():
                if isinstance(value, bytes):
                    feature[name].bytes_list.value.append(value)
                elif isinstance(value, float):
                    feature[name].float_list.value.append(value)
                elif isinstance(value, int):
                    feature[name].int64_list.value.append(value)
                else:
                    feature[name].int64_list.value.extend(value)
            example.SerializeToString()

    def by_phalanx() -> None:
        for batch in table.to_batches(max_chunksize=1000):
            encode_batch(batch)

    def by_phalanx_from_rows() -> None:
        from phalanx.records import encode_examples

        encode_examples(rows)

    print("encode: 20,000 small Examples; upb and `rows` from dictionaries, Phalanx from columns")
    times = measure({"upb": by_upb, "phalanx": by_phalanx, "phalanx, rows": by_phalanx_from_rows})
    result("encode", times["upb"] / times["phalanx"], "x-upb", ">= 10")
    result("encode-rows", times["upb"] / times["phalanx, rows"], "x-upb", ">= 1")


def random_access(directory: Path) -> None:
    """Read 20,000 small records in random order, 100 at a time."""
    import numpy as np

    from phalanx.records import RecordIndex, RecordWriter

    random = np.random.default_rng(0)
    records = [random.bytes(int(size)) for size in random.integers(80, 160, SMALL)]
    numbers = [int(number) for number in random.integers(0, SMALL, 20_000)]
    path = str(directory / "random.tfrecord")
    with RecordWriter(path) as writer:
        writer.write_all(records)
    readers = {"phalanx": RecordIndex.build(path).take}
    try:
        from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
    except ImportError:
        print("  (pip install array_record to include it)")
    else:
        # Groups of one record, as its guide advises for random access.
        array_writer = ArrayRecordWriter(f"{path}.array", "group_size:1")
        for record in records:
            array_writer.write(record)
        array_writer.close()
        readers["array_record"] = ArrayRecordReader(f"{path}.array").read

    def read_all(read: Callable[[list[int]], list[bytes]]) -> None:
        for first in range(0, len(numbers), 100):
            read(numbers[first : first + 100])

    print("random access: 20,000 records of 80 to 160 bytes, 100 at a time")
    times = measure({name: partial(read_all, read) for name, read in readers.items()})
    if "array_record" in times:
        ratio = times["array_record"] / times["phalanx"]
        result("random-access", ratio, "x-ArrayRecord", ">= 1")
        wall = times["array_record wall"] / times["phalanx wall"]
        result("random-access-wall", wall, "x-ArrayRecord", ">= 1")


def verify(directory: Path) -> None:
    from phalanx.records import RecordWriter
    from phalanx.records import verify as verify_file

    path = str(directory / "verify.tfrecord")
    record = os.urandom(3100)
    with RecordWriter(path) as writer:
        for _ in range(200_000):
            writer.write(record)
    size = Path(path).stat().st_size
    print(f"verify: {size / 1e6:.0f} MB of cached file, every checksum")
    times = measure({"phalanx": lambda: verify_file(path)})
    result("verify", size / times["phalanx"] / 1e9, "GB/s", ">= 2")
    Path(path).unlink()


def import_time() -> None:
    """Measure the CPU time of the import in new processes, without the start of Python."""

    def run(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds = [run("import phalanx.records") - run("pass") for _ in range(ROUNDS)]
    result("import", statistics.median(seconds), "s", "<= 0.3")


MEMORY = """
import os, sys
from phalanx.records import RecordWriter, read_batches, verify, infer_schema, encode_examples
message = encode_examples([{"image": os.urandom(3072), "label": 1}])[0]
with RecordWriter(sys.argv[1]) as writer:
    for _ in range(650_000):
        writer.write(message)
assert verify(sys.argv[1]).records == 650_000
schema = infer_schema(sys.argv[1])
assert sum(batch.num_rows for batch in read_batches(sys.argv[1], schema)) == 650_000
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(int(peak.split()[1]) / 1024)
"""


def memory(directory: Path) -> None:
    path = directory / "huge.tfrecord"
    print("memory: write, verify, summarize and decode a file of 2 GB")
    out = subprocess.run([sys.executable, "-c", MEMORY, str(path)], check=True, capture_output=True)
    path.unlink()
    result("memory-2gb", float(out.stdout), "MB", "<= 200")


def cifar(directory: Path) -> None:
    import pickle

    import numpy as np

    from phalanx.data.datasets import convert_cifar10

    source = directory / "cifar-10-batches-py"
    source.mkdir()
    random = np.random.default_rng(0)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        batch = {b"data": random.integers(0, 256, (10_000, 3072), np.uint8),
                 b"labels": random.integers(0, 10, 10_000).tolist()}  # fmt: skip
        (source / name).write_bytes(pickle.dumps(batch))
    started = time.perf_counter()
    convert_cifar10(source, directory / "cifar10", validation=True)
    result("cifar10", time.perf_counter() - started, "s", "<= 10")


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        decode(directory)
        encode()
        random_access(directory)
        verify(directory)
        import_time()
        memory(directory)
        cifar(directory)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"(peak memory of this process: {peak} MB)")


if __name__ == "__main__":
    main()
