"""What notebooks show for records: tables in which every text of a file is escaped."""

from pathlib import Path

from phalanx import records

NAME = "<script>alert(1)</script>"


def write(folder: Path) -> str:
    path = str(folder / "<i>train.tfrecord")
    records.write_examples(path, [{NAME: n, "label": b"&"} for n in range(3)])
    return path


def test_summary_and_schema_are_tables_of_features(tmp_path: Path) -> None:
    summary = records.summarize(write(tmp_path))
    for shown in (summary._repr_html_(), summary.schema._repr_html_()):
        assert "<script>" not in shown
        assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td>int64</td>" in shown
    assert "<caption>3 records</caption>" in summary._repr_html_()
    assert "<td>0 to 2</td>" in summary._repr_html_()
    assert "schema of Examples" in summary.schema._repr_html_()


def test_index_and_report_show_the_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert "&lt;i&gt;train.tfrecord</td><td>3</td>" in records.open_index(path)._repr_html_()
    assert "3 records" in records.verify(path)._repr_html_()
    assert ", sound</caption>" in records.verify(path)._repr_html_()
    with Path(path).open("r+b") as file:
        file.seek(20)
        file.write(b"damage")
    shown = records.verify(path)._repr_html_()
    assert ", damaged</caption>" in shown
    assert "&lt;i&gt;" in shown
    assert "<i>" not in shown
