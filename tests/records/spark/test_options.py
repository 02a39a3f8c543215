from pathlib import Path

import pytest

from phalanx.errors import DataError
from phalanx.records import Compression
from phalanx.records.spark.columns import RecordType
from phalanx.records.spark.options import NAMES, Options, WriteLocality

GUIDE = Path(__file__).parents[3] / "docs/guide/spark-records.md"


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_documented(name: str) -> None:
    assert f"| `{name}`" in GUIDE.read_text() or f", `{name}` |" in GUIDE.read_text()


def test_options_are_not_case_sensitive() -> None:
    options = Options.parse(
        {"recordtype": "sequenceexample", "WRITELOCALITY": "Local", "path": "/out/"}
    )
    assert options.record_type is RecordType.SEQUENCE_EXAMPLE
    assert options.write_locality is WriteLocality.LOCAL
    assert options.path == "/out"


@pytest.mark.parametrize(
    ("codec", "compression", "suffix"),
    [
        ("", Compression.NONE, ".tfrecord"),
        ("gzip", Compression.GZIP, ".tfrecord.gz"),
        ("GZIP", Compression.GZIP, ".tfrecord.gz"),
        ("org.apache.hadoop.io.compress.GzipCodec", Compression.GZIP, ".tfrecord.gz"),
        ("deflate", Compression.ZLIB, ".tfrecord.deflate"),
        ("org.apache.hadoop.io.compress.DefaultCodec", Compression.ZLIB, ".tfrecord.deflate"),
        ("org.apache.hadoop.io.compress.DeflateCodec", Compression.ZLIB, ".tfrecord.deflate"),
    ],
)
def test_codecs_by_name_and_by_hadoop_class(
    codec: str, compression: Compression, suffix: str
) -> None:
    options = Options.parse({"codec": codec})
    assert (options.compression, options.suffix) == (compression, suffix)


def test_lists_sizes_and_times_are_parsed() -> None:
    options = Options.parse(
        {
            "paths": '["/a", "file:/b"]',
            "columns": "x, y",
            "binaryColumns": "image",
            "maxPartitionBytes": "64m",
            "maxFileAge": "12h",
            "maxFilesPerTrigger": "3",
        }
    )
    assert options.paths == ("/a", "/b")
    assert options.columns == ("x", "y")
    assert options.binary_columns == {"image"}
    assert options.max_partition_bytes == 64 << 20
    assert options.max_file_age == 12 * 3600
    assert options.max_files_per_trigger == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pathGlobFilter": "*"}, "no option pathglobfilter: give a glob to load"),
        ({"recordTpye": "x"}, "no option recordtpye: there are recordType, codec"),
        ({"recordType": "Exmaple"}, "can be Example, SequenceExample, ByteArray"),
        ({"codec": "snappy"}, "use gzip or deflate"),
        ({"writeLocality": "here"}, "can be distributed, local"),
        ({"maxFilesPerTrigger": "0"}, "must be a number, 1 or more"),
        ({"maxPartitionBytes": "lots"}, "must be a number, such as 64m"),
        ({"maxFileAge": "h"}, "must be a number, such as 12h"),
    ],
)
def test_invalid_options_are_rejected(given: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Options.parse(given)


def test_several_output_paths_are_rejected() -> None:
    with pytest.raises(DataError, match="give one directory to write to"):
        _ = Options.parse({"paths": '["a", "b"]'}).path
