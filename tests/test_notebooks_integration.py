"""The notebooks in examples/notebooks run from top to bottom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "examples/notebooks"
WHY = "pip install nbclient ipykernel"


def run(name: str, folder: Path) -> list[Any]:
    """Run a notebook; return the outputs of its cells."""
    nbformat = pytest.importorskip("nbformat", reason=WHY)
    nbclient = pytest.importorskip("nbclient", reason=WHY)
    pytest.importorskip("ipykernel", reason=WHY)
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.slow
def test_notebook_about_records_runs(tmp_path: Path) -> None:
    outputs = run("records.ipynb", tmp_path)
    tables = [each["data"]["text/html"] for each in outputs if "text/html" in each.get("data", {})]
    assert len(tables) == 4
    assert "<caption>1,000 records</caption>" in tables[0]
    assert "damaged" in tables[-1]


@pytest.mark.slow
def test_notebook_about_training_runs_on_a_cluster(tmp_path: Path) -> None:
    outputs = run("train.ipynb", tmp_path)
    printed = "".join(each["text"] for each in outputs if each.get("name") == "stdout")
    assert "chief-0: " in printed
    assert "chief-0 failed:\n\nTraceback" in printed
    assert "ValueError: there is no data" in printed
    bars = [each["data"]["text/html"] for each in outputs if "text/html" in each.get("data", {})]
    assert any('<progress value="300" max="300">' in bar for bar in bars)
