"""The native codec, built with sanitizers, on fuzzed inputs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "fuzz"
NATIVE = Path(__file__).parents[2] / "src" / "phalanx" / "records" / "native"
SOURCES = ["crc32c.c", "framing.c", "wire.c", "decode.c", "encode.c"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_fuzzed_input_causes_no_memory_error(tmp_path: Path) -> None:
    flags = ["-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [HERE / "fuzz_codec.c", *(NATIVE / name for name in SOURCES)]
    program = tmp_path / "fuzz"
    built = subprocess.run(
        ["cc", *flags, f"-I{NATIVE}", *sources, "-o", program],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in built.stderr and "san" in built.stderr:
        pytest.skip("this compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    corpus = sorted((HERE / "corpus").iterdir())
    ran = subprocess.run(
        [program, "--rounds", "10000", *corpus],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
