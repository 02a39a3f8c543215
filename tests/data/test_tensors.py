from __future__ import annotations

from pathlib import Path

from phalanx.data import Pipeline
from phalanx.records import write_examples


def test_lists_and_sequences_become_ragged_tensors(tmp_path: Path) -> None:
    rows = [{"id": n, "tags": [b"x"] * (n % 3), "steps": [[1.0] * n, []]} for n in range(20)]
    write_examples(tmp_path / "a", rows)
    [batch] = Pipeline.from_records(tmp_path / "a").dataset(20, epochs=1)
    assert batch["tags"].to_list() == [row["tags"] for row in rows]
    assert batch["steps"].to_list() == [row["steps"] for row in rows]
