from pathlib import Path

import pytest

from phalanx.errors import DataError
from phalanx.records import (
    expand,
    read_rows,
    write_examples,
)
from phalanx.records.storage.listing import find_files


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * len(name))


def names(root: Path, *paths: str) -> list[str]:
    return [Path(file.path).relative_to(root).as_posix() for file in find_files(paths)]


def test_find_files_skips_hidden_files_indexes_and_schemas(tmp_path: Path) -> None:
    touch(tmp_path, "d/b", "d/a", "d/_SUCCESS", "d/.a.crc", "d/_temporary/0/c", "d/.git/e",
          "d/a.index", "d/lone.index", "d/schema.json", "d/k=1/f", "d/_k=1/g")  # fmt: skip
    found = ["d/_k=1/g", "d/a", "d/b", "d/k=1/f", "d/lone.index"]
    assert names(tmp_path, f"{tmp_path}/d") == found


def test_find_files_accepts_globs_directories_and_many_paths(tmp_path: Path) -> None:
    touch(tmp_path, "x-1", "x-2", "d/y", "e/z", "_x")
    assert names(tmp_path, f"{tmp_path}/x-*", f"{tmp_path}/[de]") == ["x-1", "x-2", "d/y", "e/z"]
    assert names(tmp_path, f"{tmp_path}/*x*") == ["x-1", "x-2"]
    assert names(tmp_path, f"{tmp_path}/_x") == ["_x"]


def test_braces_stand_for_alternatives(tmp_path: Path) -> None:
    touch(tmp_path, "d/k=1/a", "d/k=2/a", "d/k=3/a")
    assert names(tmp_path, f"{tmp_path}/d/k={{1,3,5}}/*") == ["d/k=1/a", "d/k=3/a"]
    assert names(tmp_path, f"{tmp_path}/{{d/k={{1,2}},e}}") == ["d/k=1/a", "d/k=2/a"]
    with pytest.raises(DataError, match=r"no file matches .*k=\{8,9\}"):
        find_files([f"{tmp_path}/d/k={{8,9}}"])
    touch(tmp_path, "{a,b}")
    assert names(tmp_path, f"{tmp_path}/{{a,b}}") == ["{a,b}"]


def test_name_with_a_bracket_is_found(tmp_path: Path) -> None:
    touch(tmp_path, "a[1]")
    assert names(tmp_path, f"{tmp_path}/a[1]") == ["a[1]"]


def test_subdirectory_is_relative_to_the_path(tmp_path: Path) -> None:
    touch(tmp_path, "d/k=1/l=2/f")
    assert [file.subdirectory for file in find_files([f"{tmp_path}/d"])] == ["k=1/l=2"]
    assert [file.subdirectory for file in find_files([f"{tmp_path}/d/k=1"])] == ["l=2"]
    assert [file.subdirectory for file in find_files([f"{tmp_path}/d/*/*/f"])] == [""]


@pytest.mark.parametrize("path", ["nothing", "no*thing"])
def test_find_files_rejects_missing_paths(tmp_path: Path, path: str) -> None:
    with pytest.raises(DataError, match=r"there is no file|no file matches"):
        find_files([f"{tmp_path}/{path}"])


def test_glob_is_sorted(tmp_path: Path) -> None:
    for number in range(3):
        write_examples(tmp_path / f"part-{number}", [{"x": number}])
    assert [row["x"] for row in read_rows(tmp_path / "part-*")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("none-*", "no file matches"), ("none", "there is no file"), ("", "is a directory")],
)
def test_expand_rejects_missing_files_and_directories(
    tmp_path: Path, pattern: str, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        expand(tmp_path / pattern)
