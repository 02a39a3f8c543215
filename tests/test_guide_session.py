"""The examples of the guides to custom loops, hooks and serving work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[1] / "docs" / "guide"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDE / page).read_text(), re.DOTALL)


def test_custom_loop_runs_to_its_last_step(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(blocks("session.md")[0])
    done = subprocess.run(
        [sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={name: text for name, text in os.environ.items() if name != "TF_CONFIG"}, check=False,
    )  # fmt: skip
    assert done.stdout == "step 200 is done\n", done.stderr
    assert (tmp_path / "runs/own/model.ckpt-200.index").exists()


def test_hooks_and_preprocessing_work() -> None:
    names: dict[str, object] = {}
    for block in (*blocks("hooks.md"), *blocks("serving.md")):
        exec(block, names)
    assert names["halve"].due(1000) == 2000  # type: ignore[attr-defined]
    import tensorflow as tf

    png = tf.io.encode_png(tf.fill([56, 56, 1], tf.constant(255, tf.uint8)))
    pixels = names["Digits"]().preprocess({"png": tf.stack([png])})  # type: ignore[operator]
    assert pixels.shape == [1, 28, 28, 1]
    assert float(tf.reduce_max(pixels)) == 1.0


def test_every_hook_is_in_the_guide() -> None:
    from phalanx import hooks

    text = (GUIDE / "hooks.md").read_text()
    assert all(name in text for name in hooks.__all__)
