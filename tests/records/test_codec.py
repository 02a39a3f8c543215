from __future__ import annotations

import random
import threading
from array import array
from typing import Any

import pytest

from phalanx.records.codec import SourceColumn, codec, load_codec
from phalanx.records.codec.fallback import crc32c_by_table

PYTHON = load_codec("python")


@pytest.mark.parametrize("data", [b"", b"a", b"123456789", bytes(32), bytes(range(256)) * 50])
def test_checksum_is_crc32c(data: bytes) -> None:
    expected = 0xFFFFFFFF
    for byte in data:
        expected ^= byte
        for _ in range(8):
            expected = expected >> 1 ^ (0x82F63B78 if expected & 1 else 0)
    assert codec.crc32c(data) == expected ^ 0xFFFFFFFF
    assert crc32c_by_table(data) == expected ^ 0xFFFFFFFF


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 767, 768, 769, 6143, 6144, 6145, 30_000])
def test_checksum_can_be_computed_in_parts(size: int) -> None:
    data = random.Random(size).randbytes(size)
    for cut in (0, size // 3, size):
        assert codec.crc32c(data[cut:], codec.crc32c(data[:cut])) == PYTHON.crc32c(data)


def test_both_codecs_frame_and_scan_identically() -> None:
    records = [random.Random(n).randbytes(n) for n in range(60)]
    data = bytes(codec.frame(records))
    assert data == bytes(PYTHON.frame(records))
    for start, most in ((0, 100), (0, 5), (16, 3)):
        found, expected = codec.scan(data, start, most, True), PYTHON.scan(data, start, most, True)
        assert bytes(found[0]) == bytes(expected[0])
        assert found[1:] == expected[1:]
    for start in range(200):
        assert codec.find(data, start) == PYTHON.find(data, start)


@pytest.mark.parametrize(
    "spans", [[-1, 2], [0, -1], [3, 1], [0, 4], [2**62, 2**62], [0, 2**63 - 1]]
)
def test_decode_rejects_spans_outside_the_data(spans: list[int]) -> None:
    with pytest.raises(ValueError, match="spans"):
        codec.decode(b"abc"[:3], array("q", spans), None, False)


def column(**changes: Any) -> SourceColumn:
    sound = SourceColumn(b"x", 3, False, -1, array("q", [1, 2]), 2, None, None, 0,
                         array("q", [0, 1, 2]), None)  # fmt: skip
    return sound._replace(**changes)


def test_valid_column_is_encoded() -> None:
    data, ends = codec.encode([column()], 2, False, False)
    assert list(memoryview(ends).cast("B").cast("q")) == [14, 28]
    assert memoryview(data).nbytes == 28


@pytest.mark.skipif(codec is PYTHON, reason="Python checks its own bounds")
@pytest.mark.parametrize(
    "changes",
    [
        {"row_offsets": array("q", [0, 1, 3])},
        {"row_offsets": array("q", [0, 2, 1])},
        {"row_offsets": array("q", [-1, 1, 2])},
        {"row_offsets": array("q", [0, 1])},
        {"row_offsets": None},
        {"value_count": 3},
        {"value_count": -1},
        {"width": 2, "row_offsets": None},
        {"width": 2**62, "row_offsets": None},
        {"kind": 1},
        {"kind": 7},
        {"kind": 1, "value_offsets": array("q", [0, 8, 17])},
        {"sequence": True},
        {"sequence": True, "step_count": 2, "step_offsets": array("q", [0, 1, 3])},
        {"present": b"\1"},
    ],
)
def test_encode_rejects_inconsistent_columns(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="offsets do not fit"):
        codec.encode([column(**changes)], 2, False, False)


def test_threads_decode_in_parallel() -> None:
    data, ends = codec.encode([column()], 2, False, False)
    spans = array("q", [0, 14, 14, 14] * 200)
    expected = bytes(codec.decode(data, spans, None, False)[0][4])
    results: list[bytes] = []

    def decode() -> None:
        for _ in range(20):
            results.append(bytes(codec.decode(data, spans, None, False)[0][4]))

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 80
    assert len(memoryview(ends).cast("B")) == 16


@pytest.mark.skipif(codec is PYTHON, reason="the limit is the native codec's")
def test_decode_rejects_too_many_discovered_features() -> None:
    from phalanx.records import encode_examples

    messages = encode_examples({f"feature {n}": [n] for n in range(17_000)})
    with pytest.raises(ValueError, match="give a schema"):
        codec.decode(messages[0], array("q", [0, len(messages[0])]), None, False)
