"""`phalanx image`."""

from pathlib import Path

import pytest
from tests.cli.in_process import invoke


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "requirements.txt").write_text("click\n")
    return tmp_path


def test_dry_run_prints_the_dockerfile_and_writes_nothing(folder: Path) -> None:
    before = set(folder.iterdir())
    done = invoke(
        "image", "--no-hashes", "--dry-run", "--requirements", "requirements.txt", "train.py"
    )
    assert done.returncode == 0, done.stderr
    assert "FROM python:3." in done.stdout
    assert set(folder.iterdir()) == before


def test_path_outside_of_the_build_context_is_an_error(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    other = tmp_path_factory.mktemp("other") / "data.csv"
    other.touch()
    done = invoke("image", "--dry-run", "train.py", other)
    assert done.returncode == 2
    assert "is outside of this directory, which is the build context" in done.stderr
