"""The codec of the jar for Spark reads what the codec of the package reads."""

from __future__ import annotations

import gzip
import math
import random
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import DataError, RecordError
from phalanx.records import RecordWriter, Schema, decode_examples, encode_examples, read_records
from phalanx.records.codec.fallback import frame
from phalanx.records.framing import Chunk
from phalanx.records.schema import summarize_chunk

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
JAR = ROOT / "java/build/phalanx-spark.jar"
CORPUS = sorted((ROOT / "tests/records/fuzz/corpus").iterdir())

Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def agreement(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the codec of the jar, and return the lines that it prints."""
    pyspark = pytest.importorskip("pyspark", reason="Spark is not installed")
    if shutil.which("javac") is None:
        pytest.skip("there is no Java compiler")
    if not JAR.exists():
        pytest.skip("the jar is not built: make jar")
    classes = tmp_path_factory.mktemp("classes")
    jars = f"{JAR}:{Path(pyspark.__file__).parent}/jars/*"
    source = Path(__file__).parent / "Agreement.java"
    subprocess.run(["javac", "-cp", jars, "-d", classes, source], check=True, timeout=120)

    def run(*arguments: object) -> list[str]:
        # Spark's launcher opens these packages, too.
        opens = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in ("java.nio", "sun.nio.ch")]
        command = ["java", *opens, "-cp", f"{classes}:{jars}", "phalanx.spark.Agreement"]
        done = subprocess.run([*command, *map(str, arguments)],
                              capture_output=True, text=True, check=False, timeout=200)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def mutate(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(source.randrange(1, 4)):
        changed[source.randrange(len(changed))] = source.choice(
            [source.randrange(256), 0, 1, 8, 10, 18, 26, 127, 128]
        )
    return bytes(changed)


def many_messages() -> Iterator[bytes]:
    source = random.Random(1)
    seeds = [path.read_bytes() for path in CORPUS]
    seeds += encode_examples([
        {"i": [-1, 2**62, 0], "f": [0.5, float("nan"), -0.0], "b": [b"", b"\xff" * 200], "é": 7},
        {"q": [[1, 2], [], [3]], "t": [[b"x"], [b"y", b"z"]], "c": 1.5},
        {f"feature-{number}": list(range(number)) for number in range(40)},
    ])  # fmt: skip
    for seed in seeds:
        yield seed
        for _ in range(2000):
            yield mutate(seed, source)


def describe(message: bytes) -> str:
    """The line of Agreement.java for a message."""
    spans = memoryview(struct.pack("=qq", 0, len(message))).cast("B").cast("q")
    line = ""
    try:
        summary = summarize_chunk(Chunk(memoryview(message), spans, 0, 12))
        features = [each.feature for each in summary.features]
        for feature in sorted(features, key=lambda each: (each.name.encode(), each.sequence)):
            (value,) = decode_examples([message], Schema((feature,))).column(0).to_pylist()
            line += f"{feature.name.encode().hex()}={show(value)} "
    except RecordError:
        return "!"
    except DataError:
        return "?"
    return line


def show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{''.join(f'{show(each)},' for each in value)}]"
    if isinstance(value, float):
        return "7fc00000" if math.isnan(value) else struct.pack(">f", value).hex()
    return value.hex() if isinstance(value, bytes) else str(value)


def test_messages_are_decoded_alike(agreement: Run, tmp_path: Path) -> None:
    messages = list(many_messages())
    with RecordWriter(tmp_path / "messages") as writer:
        writer.write_all(messages)
    found = agreement("messages", tmp_path / "messages")
    expected = [describe(message) for message in messages]
    assert {"!", "?"} < set(expected)
    assert len(found) == len(expected)
    different = [
        (message.hex(), one, other)
        for message, one, other in zip(messages, found, expected, strict=True)
        if one != other
    ]
    assert different == []


def many_files() -> Iterator[bytes]:
    source = random.Random(2)
    plain = b"".join(frame([b"x" * size]) for size in (0, 1, 300, 5))
    members = gzip.compress(plain) + b"\0\0" + gzip.compress(plain)
    for data in (plain, members, zlib.compress(plain) + zlib.compress(plain)):
        yield data
        for _ in range(100):
            yield mutate(data, source)
        for _ in range(50):
            yield data[: source.randrange(len(data))]
    yield bytes(frame([b"large" * 1_000_000, b"small"]))
    for magic in (b"BZh91", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"):
        yield magic + b"x" * 100


def read_all(path: Path) -> str:
    """The line of Agreement.java for a file."""
    line = ""
    try:
        for record in read_records(path):
            line += f"{record.hex()} "
    except (RecordError, DataError) as error:
        line += f"!{error}"
    return line


def test_files_are_read_alike_and_damage_is_reported_alike(agreement: Run, tmp_path: Path) -> None:
    paths = []
    for number, data in enumerate(many_files()):
        paths.append(tmp_path / f"file-{number}")
        paths[-1].write_bytes(data)
    found, expected = agreement("frames", *paths), [read_all(path) for path in paths]
    assert sum("!" in line for line in expected) > 100
    for path, one, other in zip(paths, found, expected, strict=True):
        if "!" in other and path.read_bytes()[:1] in (b"\x1f", b"x"):
            # How many bytes precede the damage that zlib finds depends on its version.
            assert f"!{path}: record " in one
        else:
            assert one == other
