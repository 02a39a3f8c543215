"""What an image installs: the given wheel and the locked files, whatever an index offers."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
Done = subprocess.CompletedProcess[str]


def make_wheel(folder: Path, name: str, version: str, text: str = "", needs: str = "") -> Path:
    """A package with one module, which has a variable `text`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"text = {text or version!r}\n")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A package index with a higher version of the package `demo`, and its dependency."""
    for name, version in (("demo", "9.0"), ("other", "1.0"), ("other", "1.1")):
        make_wheel(tmp_path / "index" / name, name, version)
    for folder in (tmp_path / "index").iterdir():
        links = [
            f'<a href="{each.name}#sha256={hashlib.sha256(each.read_bytes()).hexdigest()}">'
            f"{each.name}</a>"
            for each in sorted(folder.glob("*.whl"))
        ]
        (folder / "index.html").write_text("".join(links))
    return tmp_path / "index"


@pytest.fixture
def image(phalanx: Phalanx, index: Path, tmp_path: Path) -> Phalanx:
    (tmp_path / "train.py").touch()
    (tmp_path / "requirements.txt").write_text("demo>=1\n")
    make_wheel(tmp_path, "demo", "1.0", needs="other")

    def run(*arguments: object) -> Done:
        given = ["--requirements", "requirements.txt", "--wheel", "demo-1.0-py3-none-any.whl"]
        return phalanx("image", *given, *arguments, "train.py", **pip_variables(index))

    return run


def pip_variables(index: Path) -> dict[str, str]:
    return {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": f"file://{index}", "PIP_NO_INDEX": ""}


def install(
    tmp_path: Path, index: Path, environ: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the installation of the Dockerfile, in a directory in place of the container."""
    lines = (tmp_path / "Dockerfile").read_text().splitlines()
    command = next(
        json.loads(line[4:]) for line in lines if line.startswith('RUN ["pip", "install"')
    )
    lock = tmp_path / "here.lock"
    text = (tmp_path / "requirements.lock").read_text()
    lock.write_text(text.replace("file:///wheels", f"file://{tmp_path}"))
    here = [
        each.replace("/requirements.lock", str(lock)).replace("/wheels", str(tmp_path))
        for each in command[2:]
    ]
    variables = {name: value for name, value in pip_variables(index).items() if value}
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", "--target", str(tmp_path / "installed"), *here],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("mode", [[], ["--no-hashes"]])
def test_index_cannot_replace_a_given_wheel(
    image: Phalanx,
    index: Path,
    tmp_path: Path,
    environ: dict[str, str],
    mode: list[str],
) -> None:
    done = image(*mode)
    assert done.returncode == 0, done.stderr
    installed = install(tmp_path, index, environ)
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "installed/demo.py").read_text() == "text = '1.0'\n"
    assert (tmp_path / "installed/other.py").read_text() == "text = '1.1'\n"


def test_locked_image_is_the_same_next_year(
    image: Phalanx,
    index: Path,
    tmp_path: Path,
    environ: dict[str, str],
) -> None:
    assert image().returncode == 0
    # A new version does not matter, and another file of the same version is refused.
    make_wheel(index / "other", "other", "2.0")
    assert install(tmp_path, index, environ).returncode == 0
    assert (tmp_path / "installed/other.py").read_text() == "text = '1.1'\n"
    changed = make_wheel(index / "other", "other", "1.1", text="'changed'")
    (index / "other/index.html").write_text(f'<a href="{changed.name}">{changed.name}</a>')
    refused = install(tmp_path, index, environ)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr


def test_changed_wheel_is_refused(
    image: Phalanx,
    index: Path,
    tmp_path: Path,
    environ: dict[str, str],
) -> None:
    assert image().returncode == 0
    make_wheel(tmp_path, "demo", "1.0", text="'changed'", needs="other")
    assert "DO NOT MATCH THE HASHES" in install(tmp_path, index, environ).stderr


def test_unusable_wheels_and_indexes_are_reported(
    phalanx: Phalanx,
    image: Phalanx,
    index: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "requirements.txt").write_text("demo==2.0\n")
    assert "has version 1.0, not that of demo==2.0" in image().stderr
    (tmp_path / "requirements.txt").write_text("demo\n")
    for path in (index / "other").iterdir():
        path.unlink()
    done = image()
    assert done.returncode == 2
    assert "the packages cannot be locked: " in done.stderr
    assert "--no-hashes" in done.stderr
    assert not (tmp_path / "Dockerfile").exists()
    (tmp_path / "demo.whl").touch()
    named = phalanx("image", "--wheel", "demo.whl", "train.py")
    assert "demo.whl is not named as a wheel" in named.stderr
