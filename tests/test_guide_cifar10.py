"""The code in the CIFAR-10 guide is the code of the example."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/cifar10.md").read_text(), re.DOTALL)


def test_quoted_code_is_in_the_example() -> None:
    quoted = [block for block in BLOCKS if block.startswith("# examples/")]
    assert len(quoted) >= 3
    for block in quoted:
        first, _, code = block.partition("\n")
        source = (ROOT / first.removeprefix("# ")).read_text()
        for part in re.split(r"\n{2,}", code.strip()):
            assert textwrap.indent(part, "    ") in source, f"{first} no longer has:\n{part}"


def test_hook_prints_examples_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(next(block for block in BLOCKS if "class ExamplesPerSecond" in block), names)
    hook = names["speed"]
    assert hook.due(130) == 200
    hook.begin(SimpleNamespace(step=1, now=10.0, examples=8))
    for step, now in ((100, 20.0), (150, 21.0), (200, 25.0)):
        hook.after_step(SimpleNamespace(step=step, now=now, examples=step * 8))
    assert capsys.readouterr().out == "step 100: 79.2 examples/s\nstep 200: 160.0 examples/s\n"
