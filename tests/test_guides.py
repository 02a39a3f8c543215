"""The code of the guides runs as it is printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.servers import hdfs

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs/guide"


def code_blocks(page: str, language: str = "python") -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", (GUIDE / page).read_text(), re.DOTALL)
    assert blocks
    return blocks


def run(*command: str, cwd: Path) -> str:
    """Run a command that must succeed, and return what it prints to stdout."""
    environ = {name: text for name, text in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_python(code: str, folder: Path) -> str:
    # A file and not standard input: TensorFlow reads the source of functions.
    (folder / "guide.py").write_text(code)
    return run(sys.executable, "guide.py", cwd=folder)


@pytest.mark.parametrize("page", ["records.md", "data.md", "fit.md", "notebooks.md"])
def test_guides_to_data_and_fit_run(page: str, tmp_path: Path) -> None:
    run_python("".join(code_blocks(page)), tmp_path)


@pytest.mark.parametrize(
    "page",
    [
        "spark-records.md",
        "hadoop.md",
        pytest.param("spark-training.md", marks=pytest.mark.slow),
    ],
)
def test_guides_to_spark_and_hadoop_run(page: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    if page == "hadoop.md" and not (ROOT / "java/build").exists():
        pytest.skip("the jar is not built: make jar")
    (tmp_path / "java").symlink_to(ROOT / "java")
    run_python("".join(code_blocks(page)), tmp_path)


@pytest.mark.slow
def test_guide_to_hdfs_runs(tmp_path: Path) -> None:
    pytest.importorskip("hdfs_native", reason="not installed: pip install 'phalanx[hdfs]'")
    if why := hdfs.why_not():
        pytest.skip(why)
    commands = [block for block in code_blocks("hdfs.md", "sh") if block.startswith("phalanx ")]
    assert commands
    (tmp_path / "server").mkdir()
    with hdfs.running_hdfs(tmp_path / "server") as address:
        code = "".join(code_blocks("hdfs.md"))
        run_python(code.replace("hdfs://namenode:8020", address), tmp_path)
        for command in commands:
            typed = command.replace("phalanx", f"{sys.executable} -m phalanx", 1)
            run("bash", "-c", typed.replace("hdfs://namenode:8020", address), cwd=tmp_path)


def test_programs_of_the_guide_to_tensorflow_1_run(tmp_path: Path) -> None:
    program, ported = code_blocks("tf1.md")
    (tmp_path / "old.py").write_text(program)
    printed = run(sys.executable, "-m", "phalanx.compat.tf1", "old.py", cwd=tmp_path)
    assert printed == "error: 0.000\n"
    assert run_python(ported, tmp_path) == "1 0.2\n"


def test_loop_of_the_guide_to_sessions_runs(tmp_path: Path) -> None:
    assert run_python(code_blocks("session.md")[0], tmp_path) == "step 200 is done\n"
    assert (tmp_path / "runs/own/model.ckpt-200.index").exists()


def test_graph_of_the_guide_to_sessions_runs(tmp_path: Path) -> None:
    pytest.importorskip("tf_keras", reason="not installed: pip install 'phalanx[tf1]'")
    (tmp_path / "graph.py").write_text(code_blocks("session.md")[-1])
    run(sys.executable, "-m", "phalanx.compat.tf1", "graph.py", cwd=tmp_path)
    assert (tmp_path / "runs/graph/model.ckpt-100.index").exists()


def test_hooks_and_preprocessing_of_the_guides_work() -> None:
    names: dict[str, Any] = {}
    for block in (*code_blocks("hooks.md"), *code_blocks("serving.md")):
        exec(block, names)
    assert names["halve"].due(1000) == 2000
    import tensorflow as tf

    png = tf.io.encode_png(tf.fill([56, 56, 1], tf.constant(255, tf.uint8)))
    pixels = names["Digits"]().preprocess({"png": tf.stack([png])})
    assert pixels.shape == [1, 28, 28, 1]
    assert float(tf.reduce_max(pixels)) == 1.0


def test_guide_to_hooks_mentions_every_hook() -> None:
    from phalanx import hooks

    text = (GUIDE / "hooks.md").read_text()
    assert [name for name in hooks.__all__ if name not in text] == []


@pytest.mark.parametrize("page", ["cifar10.md", "porting-tf1.md"])
def test_guides_quote_the_examples(page: str) -> None:
    quoted = [block for block in code_blocks(page) if block.startswith("# examples/")]
    assert len(quoted) >= 3
    for block in quoted:
        first, _, code = block.partition("\n")
        source = (ROOT / first.removeprefix("# ")).read_text()
        for part in re.split(r"\n{3,}", code.strip()):
            found = part in source or textwrap.indent(part, "    ") in source
            assert found, f"{first} no longer has:\n{part}"


def test_hook_of_the_guide_to_cifar10_prints_the_speed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {}
    blocks = code_blocks("cifar10.md")
    exec(next(block for block in blocks if "class ExamplesPerSecond" in block), names)
    hook = names["speed"]
    assert hook.due(130) == 200
    hook.begin(SimpleNamespace(step=1, now=10.0, examples=8))
    for step, now in ((100, 20.0), (150, 21.0), (200, 25.0)):
        hook.after_step(SimpleNamespace(step=step, now=now, examples=step * 8))
    assert capsys.readouterr().out == "step 100: 79.2 examples/s\nstep 200: 160.0 examples/s\n"
