"""Reading output while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.launch import log_files
from phalanx.launch.log_files import read_log, read_tail


def test_character_written_in_two_parts_is_decoded_whole(tmp_path: Path) -> None:
    path = tmp_path / "chief-0.log"
    text = "Zürich\nZug\n".encode()
    pieces = iter([text[:2], text[:9], text])

    def is_over() -> bool:
        piece = next(pieces, None)
        if piece is not None:
            path.write_bytes(piece)
        return piece is None

    assert list(read_log(path, is_over)) == ["Zürich", "Zug"]


def test_long_log_is_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_CHUNK_BYTES", 7)
    path = tmp_path / "chief-0.log"
    path.write_text("Zürich\nGenève\nthe end")
    assert list(read_log(path)) == ["Zürich", "Genève", "the end"]
    assert list(read_log(tmp_path / "none.log")) == []


def test_read_tail_reads_only_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chief-0.log"
    path.write_text("one\ntwo\n\nthree\n\n")
    assert read_tail(path, 2) == ["two", "three"]
    monkeypatch.setattr(log_files, "_TAIL_BYTES", 8)
    assert read_tail(path, 2) == ["three"]
    assert read_tail(tmp_path / "none.log", 1) == []
