from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.batches import read_ids

from phalanx.data import Pipeline
from phalanx.errors import DataError, RecordError
from phalanx.records import RecordIndex, Schema, read_table, write_examples

COUNT = 5000


def test_saved_index_with_a_larger_stride_is_ignored(files: list[str]) -> None:
    for path in files:
        RecordIndex.build(path, stride=10).save()
    assert read_ids(Pipeline.from_records(files).dataset(64, epochs=1)) == list(range(COUNT))


def test_compressed_files_can_be_shuffled(tmp_path: Path) -> None:
    write_examples(tmp_path / "a.tfrecord.gz", {"id": np.arange(3000)})
    found = read_ids(
        Pipeline.from_records(tmp_path / "a.tfrecord.gz", seed=1).dataset(50, epochs=1)
    )
    assert sorted(found) == list(range(3000))


def test_remote_files_are_read(files: list[str]) -> None:
    write_examples("memory://data/a.tfrecord", {"id": np.arange(3000)})
    found = read_ids(
        Pipeline.from_records("memory://data/*.tfrecord", seed=1).dataset(50, epochs=1)
    )
    assert sorted(found) == list(range(3000))


def test_missing_feature_needs_a_default(tmp_path: Path) -> None:
    write_examples(tmp_path / "a", [{"x": 1, "id": 0}, {"id": 1}])
    with pytest.raises(DataError, match=r"'x' is missing .*defaults=\{'x': 0\}"):
        list(Pipeline.from_records(tmp_path / "a").batches(2, epochs=1))
    [(columns, _)] = Pipeline.from_records(tmp_path / "a", defaults={"x": -1}).batches(2, epochs=1)
    assert columns["x"].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("id", "uint8", "it is int64, and raw is for one value of bytes"),
        ("words", "uint8", "it is bytes\\[2\\], and raw is for one value of bytes"),
        ("pixels", "uint9", "cannot be read as uint9"),
    ],
)
def test_raw_rejects_other_features_and_dtypes(
    tmp_path: Path, name: str, dtype: str, words: str
) -> None:
    write_examples(tmp_path / "a", [{"id": 1, "words": [b"a", b"b"], "pixels": b"ab"}])
    with pytest.raises(DataError, match=words):
        Pipeline.from_records(tmp_path / "a", raw={name: dtype})


def test_damage_names_the_record(files: list[str]) -> None:
    index = RecordIndex.build(files[1])
    data = bytearray(Path(files[1]).read_bytes())
    data[index.offsets[17] + 14] ^= 1
    Path(files[1]).write_bytes(data)
    schema = Schema.from_arrow(read_table(files[0]).schema)
    with pytest.raises(RecordError) as caught:
        list(Pipeline.from_records(files, schema, seed=1).batches(10, epochs=1))
    assert (caught.value.path, caught.value.index) == (files[1], 17)
    assert caught.value.offset == index.offsets[17]


def test_truncated_compressed_file_names_the_record(tmp_path: Path) -> None:
    write_examples(tmp_path / "whole.gz", {"id": np.arange(100)})
    whole = (tmp_path / "whole.gz").read_bytes()
    schema = Schema.from_arrow(read_table(tmp_path / "whole.gz").schema)
    # In the middle, and in the header of a second part that would begin another record.
    for cut in (whole[: len(whole) // 2], whole + whole[:9]):
        (tmp_path / "a.gz").write_bytes(cut)
        with pytest.raises(RecordError, match=r"a\.gz: record \d+ .*gzip data is cut short"):
            len(Pipeline.from_records(tmp_path / "a.gz", schema))
