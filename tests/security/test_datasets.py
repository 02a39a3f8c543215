"""Published datasets come from anywhere: their files are data, and bounded."""

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.security.measured import run_measured

from phalanx.data.datasets import convert_cifar10

PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class Call:
    """Pickles as a call of any function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self.called


def batch(data: object, labels: object = (1,)) -> bytes:
    return pickle.dumps({b"data": data, b"labels": list(labels)}, protocol=2)  # type: ignore[call-overload]


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


BAD_PICKLES = {
    # A pointer of our choice: it crashed the interpreter.
    "objects": batch(Call(np.ndarray, (1,), np.dtype("O"), b"A" * 8)),
    "huge array": batch(Call(np.ndarray, (1 << 20, 3072), np.dtype("u1"))),
    "huge scalar": batch(Call(np.ndarray, (1,), np.dtype("V2000000000"))),
    "wide labels": batch(np.zeros((1, 3072), np.uint8), [1 << 80]),
    "text labels": batch(np.zeros((1, 3072), np.uint8), ["x"]),
    "negative shape": batch(Call(np.ndarray, (-1, 3072), np.dtype("u1"))),
    # The memo of the C implementation is an array as long as the largest number: 32 GB.
    "huge memo": opcodes(b"Nr\xff\xff\xff\x7f"),
    "huge text": opcodes(b"\x8d", struct.pack("<Q", 1 << 62), b"x"),
    "deep tuples": opcodes(b"N", b"\x85" * 900_000),
    # Each tuple holds the one before it twice: hashing or printing the last would never end.
    "shared tuples": opcodes(b"}N", b"".join(b"q%ch%c\x86" % (n, n) for n in range(99)), b"Ns"),
    "named by tuples": opcodes(
        b"N", b"".join(b"q%ch%c\x86" % (n, n) for n in range(99)), b"\x8c\x01x\x93"
    ),
    # Texts that are written once and used a hundred thousand times.
    "long function": opcodes(
        b"X", struct.pack("<I", 1 << 24), b"x" * (1 << 24), b"q\x00", b"h\x00h\x00\x93" * 100_000
    ),
    "long key": opcodes(
        b"}B", struct.pack("<I", 1 << 24), b"x" * (1 << 24), b"q\x00N", b"sh\x00N" * 100_000
    ),
    "long name": opcodes(b"cnumpy\n", b"x" * (1 << 24), b"\n"),
    "empty stack": opcodes(b"R"),
    "no mark": opcodes(b"NNNu"),
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD_PICKLES)
def test_a_hostile_batch_of_cifar10_is_an_error(name: str, tmp_path: Path) -> None:
    for part in PARTS:
        (tmp_path / part).write_bytes(BAD_PICKLES[name])
    done = run_measured(
        tmp_path, "dataset", "cifar10", "--source", tmp_path, "--out", tmp_path / "out"
    )
    assert done.returncode == 2, done.stderr
    assert "data_batch_1 is not a batch of CIFAR-10" in done.stderr
    assert len(done.stderr) < 1000
    assert done.peak < 400
    assert not (tmp_path / "out").exists()


def make_tar(path: Path, member: tarfile.TarInfo, zeros: int) -> None:
    """Write an archive with one member of zeros, compressed a thousandfold."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(member.tobuf())
        block = bytes(1 << 20)
        for _ in range(zeros >> 20):
            file.write(block)


def make_member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member


@pytest.mark.parametrize(
    "member",
    [
        make_member("data_batch_1", 1 << 30),
        make_member("another", 1 << 30),
        make_member("pax", 1 << 30, tarfile.XHDTYPE),
        make_member("name", 1 << 30, tarfile.GNUTYPE_LONGNAME),
    ],
    ids=lambda member: member.name,
)
def test_an_archive_that_expands_without_limit_is_an_error(
    member: tarfile.TarInfo, tmp_path: Path
) -> None:
    make_tar(tmp_path / "cifar.tar.gz", member, 1 << 30)
    done = run_measured(
        tmp_path,
        "dataset",
        "cifar10",
        "--source",
        tmp_path / "cifar.tar.gz",
        "--out",
        tmp_path / "out",
    )
    assert done.returncode == 2, done.stderr
    assert "MiB" in done.stderr
    assert done.peak < 400


# Python's tarfile searches such a header for more than ten minutes.
DIGITS = b"1" * (1 << 20)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (tarfile.XHDTYPE, DIGITS),
        (tarfile.XGLTYPE, DIGITS),
        (tarfile.XHDTYPE, b"1" * 4096),
        (tarfile.XHDTYPE, b"9" * 4000 + b" path=x\n"),
        (tarfile.GNUTYPE_SPARSE, DIGITS),
        (tarfile.GNUTYPE_LONGNAME, DIGITS),
    ],
    ids=["pax", "pax of all", "many pax", "long number", "sparse", "long name"],
)
def test_headers_of_an_archive_are_read_in_linear_time(
    kind: bytes, text: bytes, tmp_path: Path
) -> None:
    header = make_member("header", len(text), kind).tobuf() + text
    with (tmp_path / "cifar.tar").open("wb") as file:
        for _ in range(min((1 << 23) // len(header), 1500)):
            file.write(header + bytes(-len(header) % 512))
    done = run_measured(
        tmp_path,
        *("dataset", "cifar10", "--source", tmp_path / "cifar.tar", "--out", tmp_path / "out"),
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "CIFAR-10" in done.stderr
    assert len(done.stderr) < 1000


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_with_long_paths_can_be_read(form: int, tmp_path: Path) -> None:
    data = pickled_by_python_2()
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz", format=form) as archive:
        for part in ("._data_batch_1", *PARTS):
            member = make_member(f"{'d' * 90}/{'e' * 40}/{part}", len(data))
            archive.addfile(member, io.BytesIO(data))
    assert convert_cifar10(tmp_path / "cifar.tar.gz", tmp_path / "out") == {"train": 10, "eval": 2}


def test_a_file_of_mnist_that_expands_without_limit_is_an_error(tmp_path: Path) -> None:
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 1 << 20, 28, 28)
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(header)
        for _ in range(784):
            file.write(bytes(1 << 20))
    done = run_measured(
        tmp_path, "dataset", "mnist", "--source", tmp_path, "--out", tmp_path / "out"
    )
    assert done.returncode == 2, done.stderr
    assert "MiB" in done.stderr
    assert done.peak < 400


IMAGES = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)


def pickled_by_python_2() -> bytes:
    """The opcodes of the published files: texts of 8 bits, and numpy.core."""
    data = IMAGES.tobytes()
    return opcodes(
        b"}q\x01(U\x0bbatch_labelq\x02U\x05trainq\x03U\x06labelsq\x04]q\x05(K\x06",
        b"K\x09eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00",
        b"\x85q\x09U\x01b\x87q\x0aRq\x0b(K\x01K\x02M\x00\x0c\x86q\x0ccnumpy\ndtype\nq\x0dU\x02u1K",
        b"\x00K\x01\x87q\x0eRq\x0f(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T",
        struct.pack("<I", len(data)),
        data,
        b"q\x10tq\x11bU\x09filenamesq\x12]q\x13(U\x05a.pngq\x14U\x05b.pngq\x15eu",
    )


def pickled_by_python_3(protocol: int) -> Callable[[], bytes]:
    return lambda: pickle.dumps({b"data": IMAGES, b"labels": [6, 9]}, protocol)


def pickled_in_columns() -> bytes:
    return pickle.dumps({b"data": np.asfortranarray(IMAGES), b"labels": [6, 9]}, 4)


@pytest.mark.parametrize(
    "write",
    [pickled_by_python_2, *(pickled_by_python_3(n) for n in range(6)), pickled_in_columns],
    ids=["python 2", *(f"protocol {n}" for n in range(6)), "columns"],
)
def test_genuine_batches_of_any_version_can_be_read(
    write: Callable[[], bytes], tmp_path: Path
) -> None:
    from phalanx.records import read_arrays

    with tarfile.open(tmp_path / "cifar.tar", "w") as archive:
        for part in PARTS:
            data = write()
            archive.addfile(make_member(f"cifar-10-batches-py/{part}", len(data)), io.BytesIO(data))
    assert convert_cifar10(tmp_path / "cifar.tar", tmp_path / "out") == {"train": 10, "eval": 2}
    found = read_arrays(tmp_path / "out/eval.tfrecord")
    assert found["label"].tolist() == [6, 9]
    assert found["image"].tolist() == [row.tobytes() for row in IMAGES]
