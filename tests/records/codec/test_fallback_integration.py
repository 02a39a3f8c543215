"""The codec in Python passes the tests of the native codec."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.records.codec import load_codec

HERE = Path(__file__).parent.parent
SUITE = ["test_framing.py", "test_writer.py", "test_file_operations.py", "test_index.py",
         "test_example.py", "test_schema.py", "test_codec.py"]  # fmt: skip


@pytest.mark.skipif(os.environ.get("PHALANX_CODEC") == "python", reason="this is that run")
def test_suite_passes_with_the_python_codec() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(HERE / name for name in SUITE),
        ],
        env={**os.environ, "PHALANX_CODEC": "python"},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout


def test_native_codec_was_built() -> None:
    assert load_codec("native").CRC32C in ("sse4.2", "arm", "tables")
    assert load_codec("python").CRC32C in ("python", "google-crc32c")
