from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.batches import check_reads_200_ids

from phalanx.data import Pipeline
from phalanx.errors import DataError


def table() -> pa.Table:
    return pa.table({"id": np.arange(200), "word": [f"w{n}" for n in range(200)],
                     "list": [[n] * (n % 3) for n in range(200)]})  # fmt: skip


def test_from_table_and_parquet(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=30)
    for pipeline in (Pipeline.from_table(table()), Pipeline.from_parquet(tmp_path / "a.parquet")):
        check_reads_200_ids(pipeline)
        batch = next(iter(pipeline.dataset(5, epochs=1)))
        assert batch["word"].numpy().tolist() == [b"w0", b"w1", b"w2", b"w3", b"w4"]
        assert batch["list"].to_list() == [[], [1], [2, 2], [], [4]]
    with pytest.raises(DataError, match="not a Parquet file"):
        (tmp_path / "b.parquet").write_text("nope")
        len(Pipeline.from_parquet(tmp_path / "b.parquet"))


def test_damaged_parquet_file_is_an_error(damaged_parquet: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file that can be read"):
        next(Pipeline.from_parquet(damaged_parquet).batches(10))


def test_from_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,word\n" + "".join(f"{n},w{n}\n" for n in range(200)))
    check_reads_200_ids(Pipeline.from_csv(tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text("id,word\n0.5,w\n")
    with pytest.raises(DataError, match="do not have the same columns and types"):
        Pipeline.from_csv(tmp_path / "*.csv")
