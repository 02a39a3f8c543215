from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.batches import check_reads_200_ids

from phalanx.data import Pipeline
from phalanx.errors import DataError


def test_from_arrays() -> None:
    images = np.arange(200 * 12).reshape(200, 2, 2, 3)
    pipeline = Pipeline.from_arrays({"id": np.arange(200), "image": images}, seed=1)
    check_reads_200_ids(pipeline)
    for batch in pipeline.dataset(10, epochs=1):
        np.testing.assert_array_equal(batch["image"], images[batch["id"].numpy()])
    with pytest.raises(DataError, match="same number of rows"):
        Pipeline.from_arrays({"a": np.arange(2), "b": np.arange(3)})


def test_from_binary(tmp_path: Path) -> None:
    rows = np.zeros(200, np.dtype([("id", "uint8"), ("image", "uint8", (3, 2, 2))]))
    rows["id"] = np.arange(200)
    rows["image"] = np.arange(200)[:, None, None, None]
    (tmp_path / "1.bin").write_bytes(rows[:50].tobytes())
    (tmp_path / "2.bin").write_bytes(rows[50:].tobytes())
    layout = {"id": "uint8", "image": ("uint8", (3, 2, 2))}
    pipeline = Pipeline.from_binary(tmp_path / "*.bin", layout, seed=1)
    check_reads_200_ids(pipeline)
    for batch in pipeline.dataset(9, epochs=1):
        np.testing.assert_array_equal(batch["image"][:, 2, 1, 1], batch["id"])
    (tmp_path / "3.bin").write_bytes(b"x" * 14)
    with pytest.raises(DataError, match="14 bytes, which is not a multiple of the 13"):
        len(Pipeline.from_binary(tmp_path / "*.bin", layout))


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
