"""Progress that a task on another host prints between other output."""

import os
from pathlib import Path

from phalanx.cluster.progress import PROGRESS_MARK, RunProgress, read_progress
from phalanx.launch.processes.progress_lines import ProgressLines


def make_line(step: int) -> bytes:
    reader, writer = os.pipe()
    try:
        RunProgress("chief-0", step).print(writer)
        return os.read(reader, 1 << 16)
    finally:
        os.close(reader)
        os.close(writer)


def test_progress_is_written_to_the_file_and_the_rest_is_kept(tmp_path: Path) -> None:
    lines = ProgressLines(tmp_path / "progress")
    output = lines.take(b"loss 1\n" + make_line(3) + make_line(4) + b"loss 2\nbar |")
    assert output == b"loss 1\nloss 2\nbar |"
    assert read_progress(tmp_path / "progress") == RunProgress("chief-0", 4)


def test_a_line_may_arrive_in_pieces(tmp_path: Path) -> None:
    lines = ProgressLines(tmp_path / "progress")
    text = b"10% |=" + make_line(7) + b"==|\n"
    output = b"".join(lines.take(bytes([byte])) for byte in text)
    assert output + lines.take_rest() == b"10% |===|\n"
    assert read_progress(tmp_path / "progress") == RunProgress("chief-0", 7)


def test_what_only_looks_like_progress_is_dropped_or_kept(tmp_path: Path) -> None:
    lines = ProgressLines(tmp_path / "progress")
    assert lines.take(PROGRESS_MARK + b"{not json}\na\n") == b"a\n"
    assert lines.take(b"\x1eother\n") == b"\x1eother\n"
    assert lines.take(b"end\x1epha") == b"end"
    assert lines.take_rest() == b"\x1epha"
    assert lines.take(PROGRESS_MARK + b"x" * (1 << 18)).startswith(PROGRESS_MARK)
    assert not (tmp_path / "progress").exists()
