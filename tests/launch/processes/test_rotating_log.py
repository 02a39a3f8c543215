"""The log of a long job stays below its limit, and readers miss nothing of what is kept."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from phalanx.launch.log_files import read_log, read_tail, rotated
from phalanx.launch.processes.rotating_log import RotatingLog

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


def write(path: Path, lines: range, limit: int, again: bool = False) -> None:
    log = RotatingLog(path, limit, again=again)
    for number in lines:
        log.write(f"line {number}\n".encode())
    log.close()


def test_log_keeps_the_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    write(path, range(1000), limit=1000)
    assert path.stat().st_size + rotated(path).stat().st_size <= 1000
    kept = list(read_log(path))
    assert kept == [f"line {number}" for number in range(1000 - len(kept), 1000)]
    assert len(kept) > 50
    assert read_tail(path, 60) == kept[-60:]


def test_restarted_task_continues_its_log_and_a_new_run_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    write(path, range(100), limit=10_000)
    write(path, range(100, 200), limit=10_000, again=True)
    assert list(read_log(path)) == [f"line {number}" for number in range(200)]
    write(path, range(5000), limit=1000)
    write(path, range(3), limit=1000)
    assert list(read_log(path)) == ["line 0", "line 1", "line 2"]
    assert not rotated(path).exists()


def test_line_may_be_split_by_the_rotation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = RotatingLog(path, 20, again=False)
    for part in (b"first\nsec", b"ond\nthird\n"):
        log.write(part)
    log.close()
    assert rotated(path).exists()
    assert list(read_log(path)) == ["first", "second", "third"]


def test_reader_follows_across_rotations(tmp_path: Path) -> None:
    path, over, seen = tmp_path / "a.log", threading.Event(), threading.Semaphore(0)
    lines: list[str] = []

    def follow() -> None:
        for line in read_log(path, over.is_set):
            lines.append(line)
            seen.release()

    reader = threading.Thread(target=follow)
    reader.start()
    log = RotatingLog(path, 100, again=False)
    for number in range(50):
        log.write(f"line {number}\n".encode())
        assert seen.acquire(timeout=30)
    log.close()
    over.set()
    reader.join(30)
    assert lines == [f"line {number}" for number in range(50)]


def test_long_output_of_a_run(phalanx: Phalanx, tmp_path: Path) -> None:
    command = ["--log-dir", "logs", "--log-limit", "100K", "--", "seq", 100_000]
    done = phalanx("run", *command)
    assert done.stdout.count("\n") == 100_000
    sizes = {each.name: each.stat().st_size for each in (tmp_path / "logs").iterdir()}
    assert set(sizes) == {"chief-0.log", "chief-0.log.1"}
    # A single read of the supervisor is never split.
    assert sum(sizes.values()) <= (100 << 10) + (64 << 10)
    assert list(read_log(tmp_path / "logs/chief-0.log"))[-1] == "100000"
