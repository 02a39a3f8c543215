"""`phalanx image`: its files compared whole, and what it refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from phalanx.launch.containers.image import Contents, plan_image
from phalanx.launch.containers.package_lock import LockedPackage, Wheel, lock_environment
from phalanx.launch.job import Program, ProgramKind

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]
GOLDEN = Path(__file__).parents[1] / "golden"
CONTENTS = Contents(
    program=Program(ProgramKind.FILE, "train.py"),
    paths=("train.py", "my models"),
    requirements=("phalanx[cpu]==0.1.0", "pandas>=3"),
    lock={"tensorflow-cpu": "2.21.0", "pandas": "3.0.1", "keras": "3.15.1"},
    base="python:3.11-slim-bookworm",
)


def test_rendered_dockerfile() -> None:
    assert plan_image(CONTENTS).render() == (GOLDEN / "image.dockerfile").read_text()


def test_gpu_image_has_the_same_tensorflow_with_cuda() -> None:
    contents = replace(CONTENTS, gpu=True, requirements=("phalanx[gpu]==0.1.0",))
    plan = plan_image(contents)
    assert "ENV NVIDIA_VISIBLE_DEVICES=all" in plan.dockerfile
    assert plan.lock.splitlines()[1:] == [
        "keras==3.15.1",
        "pandas==3.0.1",
        "tensorflow-cpu==2.21.0",
        "tensorflow==2.21.0",
    ]


def test_wheels_are_installed_by_their_path() -> None:
    wheel = Wheel("phalanx-0.1.0-py3-none-any.whl")
    plan = plan_image(replace(CONTENTS, wheels=(wheel,)))
    assert 'COPY ["phalanx-0.1.0-py3-none-any.whl", "/wheels/"]\n' in plan.dockerfile
    assert '"phalanx[cpu] @ file:///wheels/phalanx-0.1.0-py3-none-any.whl"' in plan.dockerfile


def test_lock_with_hashes_is_all_that_is_installed() -> None:
    packages = (LockedPackage("click", "8.2", "ab"), LockedPackage("demo", "1", "cd", "demo-1.whl"))
    plan = plan_image(replace(CONTENTS, packages=packages))
    assert '"--no-deps", "--require-hashes", "--requirement=/requirements.lock"]' in plan.dockerfile
    assert plan.lock.splitlines()[1:] == [
        "click==8.2 --hash=sha256:ab",
        "demo @ file:///wheels/demo-1.whl --hash=sha256:cd",
    ]


def test_lock_excludes_packages_of_local_directories(tmp_path: Path) -> None:
    for name, is_local in (("Of_Index", False), ("of-here", True), ("pip", False)):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        if is_local:
            (folder / "direct_url.json").write_text("{}")
    installed = [Distribution.at(path) for path in sorted(tmp_path.iterdir())]
    assert lock_environment(installed) == {"of-index": "1.0"}


@pytest.fixture
def program(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "requirements.txt").write_text("click  # as it is installed\n")


WITH = ["--requirements", "requirements.txt"]


@pytest.mark.usefixtures("program")
def test_generated_files_are_written_and_replaced(phalanx: Phalanx, tmp_path: Path) -> None:
    for _ in range(2):
        done = phalanx("image", *WITH, "--no-hashes", "train.py")
        assert done.returncode == 0, done.stderr
    assert '"click"]\n' in (tmp_path / "Dockerfile").read_text()
    assert "\nclick==" in (tmp_path / "requirements.lock").read_text()


@pytest.mark.usefixtures("program")
def test_dry_run_writes_nothing(phalanx: Phalanx, tmp_path: Path) -> None:
    done = phalanx("image", *WITH, "--no-hashes", "--dry-run", "train.py")
    assert done.stdout.splitlines()[1].startswith("FROM python:3.")
    assert not (tmp_path / "Dockerfile").exists()


@pytest.mark.usefixtures("program")
def test_edited_file_is_not_replaced(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM mine\n")
    done = phalanx("image", *WITH, "--no-hashes", "train.py")
    assert done.returncode == 2
    assert "Dockerfile is there, and was not written by `phalanx image`" in done.stderr
    assert (tmp_path / "Dockerfile").read_text() == "FROM mine\n"
    assert not (tmp_path / "requirements.lock").exists()


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.py"], "Path 'none.py' does not exist"),
        (["train.py", "/etc/passwd"], "/etc/passwd is outside of this directory"),
        (["train.py"], "this Phalanx is installed from a directory"),
        (["--requirements", "wild.txt", "train.py"], "no-such has no version and is not installed"),
        (["--requirements", "options.txt", "train.py"], "'-r other.txt': an image takes requirem"),
    ],
)
def test_wrong_use(phalanx: Phalanx, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "wild.txt").write_text("no-such\n")
    (tmp_path / "options.txt").write_text("-r other.txt\n")
    done = phalanx("image", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "Dockerfile").exists()


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PATH": "/nonexistent"}, "nothing was built: there is no command docker; install it"),
        ({"DOCKER_HOST": "unix:///nowhere"}, "nothing was built: "),
    ],
)
def test_missing_engine_raises(phalanx: Phalanx, variables: dict[str, str], said: str) -> None:
    done = phalanx("image", *WITH, "--no-hashes", "--build", "digits:1", "train.py", **variables)
    assert done.returncode == 2
    assert said in done.stderr
