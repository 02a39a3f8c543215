"""Saves that fail are retried while training goes on, until a limit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.train.small_experiment import train_line

import phalanx
from phalanx.errors import SaveError
from phalanx.train.loop.save_retries import RETRY_SECONDS, SaveRetries
from phalanx.train.loop.session import Session


def test_the_next_try_is_due_after_a_while_and_the_limit_ends_it() -> None:
    now = 0.0
    retries = SaveRetries(100, clock=lambda: now)
    assert not retries.is_due()
    retries.fail(SaveError("full"), 1)
    assert not retries.is_due()
    now = RETRY_SECONDS
    assert retries.is_due()
    retries.succeed()
    assert not retries.is_failing
    retries.fail(SaveError("full"), 2)
    now = RETRY_SECONDS + 100
    with pytest.raises(SaveError, match=r"no checkpoint could be written for 100 s.*full"):
        retries.fail(SaveError("full"), 3)


def test_a_stop_ends_the_wait_with_the_reason() -> None:
    retries = SaveRetries(100, clock=lambda: 0.0)
    retries.fail(SaveError("the disk is full"), 1)
    with pytest.raises(SaveError, match="the disk is full"):
        retries.wait(lambda: True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_cannot_be_written_does_not_end_training(
    small_disk: Path,
    fault: str,
    config: phalanx.RunConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("phalanx.train.loop.save_retries.RETRY_SECONDS", 0.05)

    def act(session: Session) -> None:
        if session.step == 2 and fault == "full":
            with (small_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
                while file.write(b"x" * 4096):
                    pass
        elif session.step == 2:
            over = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(small_disk)]
            subprocess.run(over, check=True)
        elif session.step == 10 and fault == "full":
            (small_disk / "filler").unlink()
        elif session.step == 10:
            subprocess.run(["umount", str(small_disk)], check=True)

    hook = phalanx.hooks.ActionHook(phalanx.hooks.Every(steps=1), act)
    result = train_line(
        config, hook, model_dir=str(small_disk), save_steps=4, train_steps=30, log_steps=1,
        summary_steps=1,
    )  # fmt: skip
    assert result.step == 30
    assert result.checkpoint.endswith("-30")
    assert "step 4 is not saved" in caplog.text
    assert "checkpoints can be written again" in caplog.text
