from __future__ import annotations

import pytest

from phalanx.errors import DataError
from phalanx.records.directory import FoundFile
from phalanx.records.spark.seen import Seen, between


def file(name: str, modified: float) -> FoundFile:
    return FoundFile(f"/d/{name}", 1, modified, "/d")


A, B, C = file("a", 100), file("b", 50), file("c", 200)


def test_every_file_is_read_once_also_one_with_an_old_date() -> None:
    first = Seen().add([A], [A], 1000)
    assert first.has(A)
    assert not first.has(B)
    second = Seen.load(first.dump()).add([B, C], [A, B, C], 1000)
    assert between(first, second, [C, B, A]) == [B, C]
    assert between(second, second, [A, B, C]) == []


def test_the_offset_is_text_that_leads_back() -> None:
    seen = Seen().add([A, B], [A, B], 1000)
    assert Seen.load(seen.dump()) == seen
    assert all(isinstance(text, str) for text in seen.dump().values())


def test_old_names_are_forgotten_and_their_files_not_read_again() -> None:
    seen = Seen().add([A, B], [A, B], 1000).add([C], [A, B, C], 120)
    assert len(seen.names) == 2
    assert seen.has(A) and seen.has(B) and seen.has(C)
    assert seen.has(file("very old", 10))


def test_the_first_batch_has_files_of_any_age() -> None:
    end = Seen().add([A, B, C], [A, B, C], 10)
    assert between(Seen(), end, [A, B, C]) == [B, A, C]


def test_a_file_that_is_gone_is_an_error() -> None:
    end = Seen().add([A, B], [A, B], 1000)
    with pytest.raises(DataError, match="1 of 2 files that the stream was about to read are gone"):
        between(Seen(), end, [B])


def test_the_offset_of_another_source_is_an_error() -> None:
    with pytest.raises(DataError, match="the checkpoint is not one of format"):
        Seen.load({"logOffset": "3"})
