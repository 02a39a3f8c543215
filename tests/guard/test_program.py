"""Programs that do not load the guard's library are known before they start."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.guard.library import find_library, find_obstacle, guard_variables

REAL = Path(sys.executable).resolve().read_bytes()


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    path.chmod(0o755)
    return str(path)


def compile_program(path: Path, *options: str) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = path.with_suffix(".c")
    source.write_text("int main(void) { return 0; }")
    done = subprocess.run([compiler, *options, str(source), "-o", str(path)], check=False)
    if done.returncode:
        pytest.skip(f"cannot compile with {options}")
    return str(path)


def test_python_and_scripts_of_it_are_no_obstacle(tmp_path: Path) -> None:
    assert find_obstacle(sys.executable) is None
    for line in (f"#!{sys.executable}\n", "#!/bin/sh\n", "#!/usr/bin/env -S python3 -u\n", ""):
        assert find_obstacle(write(tmp_path / "script", line.encode())) is None


def test_static_program_is_an_obstacle(tmp_path: Path) -> None:
    for option in ("-static", "-static-pie"):
        program = compile_program(tmp_path / "static", option)
        assert find_obstacle(program) == f"{program} is linked statically"


def test_32_bit_program_is_an_obstacle(tmp_path: Path) -> None:
    # Class 1, machine 3: a program for i386.
    header = b"\x7fELF\x01\x01\x01".ljust(16, b"\0") + struct.pack("<HHI", 2, 3, 1)
    program = write(tmp_path / "small", header.ljust(52, b"\0"))
    assert "or a 32-bit one" in str(find_obstacle(program))


def test_program_for_another_processor_is_an_obstacle(tmp_path: Path) -> None:
    program = write(tmp_path / "riscv", REAL[:18] + struct.pack("<H", 243) + REAL[20:])
    assert "another processor" in str(find_obstacle(program))


def test_program_with_another_c_library_is_an_obstacle(tmp_path: Path) -> None:
    loader = next(
        each for each in (b"ld-linux-x86-64.so.2", b"ld-linux-aarch64.so.1") if each in REAL
    )
    musl = b"ld-musl-any.so.1".ljust(len(loader), b"\0")
    program = write(tmp_path / "musl", REAL.replace(loader, musl))
    assert "uses another C library" in str(find_obstacle(program))


def test_program_in_go_is_an_obstacle(tmp_path: Path) -> None:
    source = tmp_path / "note.s"
    source.write_text(
        '.section .note.go.buildid,"a",@note\n.long 4, 4, 4\n.asciz "Go\\0"\n.long 0\n'
        '.section .note.GNU-stack,"",@progbits\n'
    )
    program = compile_program(tmp_path / "go", str(source))
    assert "is written in Go" in str(find_obstacle(program))


def test_script_of_an_unsuitable_interpreter_is_an_obstacle(tmp_path: Path) -> None:
    program = compile_program(tmp_path / "static", "-static")
    inner = write(tmp_path / "inner", f"#!{program} -x\n".encode())
    outer = write(tmp_path / "outer", f"#! {inner}\n".encode())
    named = write(tmp_path / "named", f"#!/usr/bin/env -S A=1 {program}\n".encode())
    for script in (inner, outer, named):
        assert find_obstacle(script) == f"{program} is linked statically"


def test_script_that_runs_itself_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    assert find_obstacle(write(path, f"#!{path}\n".encode())) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program to another user")
def test_program_with_rights_of_another_user_is_an_obstacle(tmp_path: Path) -> None:
    program = compile_program(tmp_path / "program")
    os.chown(program, 65534, 65534)
    for mode in (0o4755, 0o2755):
        Path(program).chmod(mode)
        assert "rights of another user" in str(find_obstacle(program))
        # The loader really ignores the library in such a program.
        library = find_library()
        assert library is not None
        variables = guard_variables(library, "127.0.0.1", [], {}) | {"LD_DEBUG": "files"}
        done = subprocess.run([program], env=variables, capture_output=True, text=True, check=False)
        assert "_preload" not in done.stderr


def test_damaged_programs_are_no_obstacle(tmp_path: Path) -> None:
    for content in (b"\x7fELF\x02\x01", REAL[:70], b"#!\n", b"#!/usr/bin/env\n", b""):
        assert find_obstacle(write(tmp_path / "program", content)) is None


@pytest.mark.parametrize("setting", ["", "required"])
def test_command_of_run_is_looked_at(setting: str, tmp_path: Path) -> None:
    program = compile_program(tmp_path / "static", "-static")
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "--", program],
        env={**os.environ, "PHALANX_GUARD": setting},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{program} is linked statically" in done.stderr
    assert done.returncode == (2 if setting else 0), done.stderr
