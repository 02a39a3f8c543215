from __future__ import annotations

import pytest

from phalanx.errors import DataError
from phalanx.records.spark.stream_offset import StreamOffset, select_files_between
from phalanx.records.storage.listing import FoundFile


def file(name: str, modified: float) -> FoundFile:
    return FoundFile(f"/d/{name}", 1, modified, "/d")


A, B, C = file("a", 100), file("b", 50), file("c", 200)


def test_every_file_is_read_once_even_with_an_old_date() -> None:
    first = StreamOffset().add([A], [A], 1000)
    assert first.covers(A)
    assert not first.covers(B)
    second = StreamOffset.load(first.dump()).add([B, C], [A, B, C], 1000)
    assert select_files_between(first, second, [C, B, A]) == [B, C]
    assert select_files_between(second, second, [A, B, C]) == []


def test_offset_round_trips_as_text() -> None:
    offset = StreamOffset().add([A, B], [A, B], 1000)
    assert StreamOffset.load(offset.dump()) == offset
    assert all(isinstance(text, str) for text in offset.dump().values())


def test_old_files_are_dropped_and_not_read_again() -> None:
    offset = StreamOffset().add([A, B], [A, B], 1000).add([C], [A, B, C], 120)
    assert len(offset.hashes) == 2
    assert offset.covers(A) and offset.covers(B) and offset.covers(C)
    assert offset.covers(file("very old", 10))


def test_first_batch_has_files_of_any_age() -> None:
    end = StreamOffset().add([A, B, C], [A, B, C], 10)
    assert select_files_between(StreamOffset(), end, [A, B, C]) == [B, A, C]


def test_missing_file_is_an_error() -> None:
    end = StreamOffset().add([A, B], [A, B], 1000)
    with pytest.raises(
        DataError, match="1 of 2 files that the stream was about to read no longer exist"
    ):
        select_files_between(StreamOffset(), end, [B])


def test_offset_of_another_source_is_an_error() -> None:
    with pytest.raises(DataError, match="the checkpoint is not one of format"):
        StreamOffset.load({"logOffset": "3"})
