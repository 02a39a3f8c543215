"""The package: its version, its wheel and sdist, and packages that extend it."""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import phalanx

ROOT = Path(__file__).parents[1]
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, environ: dict[str, str]) -> Run:
    """Runs a command that must succeed, and returns what it prints."""

    def call(*command: object, cwd: Path = tmp_path, **variables: str) -> str:
        done = subprocess.run(
            list(map(str, command)), cwd=cwd, env={**environ, **variables}, capture_output=True,
            text=True, timeout=580, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


@pytest.fixture
def installed_extension(tmp_path: Path, run: Run) -> Path:
    """The directory in which the example of a package with entry points is installed."""
    source = tmp_path / "source"
    source.mkdir()
    for path in (ROOT / "examples/extension").glob("p*.*"):
        (source / path.name).write_bytes(path.read_bytes())
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--disable-pip-version-check", "--target", tmp_path / "site", source)
    return tmp_path / "site"


def test_version_is_that_of_the_installed_package() -> None:
    assert phalanx.__version__[0].isdigit()


def test_other_packages_add_launchers_and_detectors(installed_extension: Path, run: Run) -> None:
    path = {"PYTHONPATH": str(installed_extension), "XDG_STATE_HOME": str(installed_extension)}
    (installed_extension.parent / "train.py").touch()
    launch = (sys.executable, "-m", "phalanx", "launch", "print", "--dry-run", "--workers", "1")
    shown = run(*launch, "train.py", **path)
    assert shown.splitlines()[0].startswith("chief-0: python3 ")
    code = "import phalanx; print(phalanx.detect().task)"
    task = run(sys.executable, "-c", code, RANK="1", PEERS="a:2222,b:2222", **path)
    assert task == "worker-1\n"
    assert run(sys.executable, "-c", code, **path) == "chief-0\n"


@pytest.mark.slow
def test_other_packages_add_hooks(installed_extension: Path, run: Run) -> None:
    code = (
        "import phalanx\n"
        "from tests.train.small_experiment import Line\n"
        "phalanx.run(Line(), phalanx.RunConfig.parse())\n"
    )
    paths = f"{installed_extension}{os.pathsep}{ROOT}"
    (installed_extension.parent / "train.py").write_text(code)
    flags = ("--model-dir", "model", "--train-steps", "2", "--hooks", "count-saves")
    shown = run(sys.executable, "train.py", *flags, PYTHONPATH=paths)
    assert shown.endswith(" checkpoints in model\n")


def test_hook_that_no_package_provides_is_an_error() -> None:
    from phalanx.train.hooks.entry_points import load_hooks

    with pytest.raises(phalanx.ConfigurationError, match="there is no hook 'x'"):
        load_hooks(phalanx.RunConfig(hooks="x"))


@pytest.mark.slow
def test_wheel_and_sdist_install_and_train_in_a_clean_environment(tmp_path: Path, run: Run) -> None:
    python = tmp_path / "env/bin/python"
    run(sys.executable, "-m", "venv", tmp_path / "env")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", "build>=1.3,<2", "twine>=6,<7", "auditwheel>=6,<7")
    run(python, "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    [wheel], [sdist] = (list((tmp_path / "dist").glob(f"*.{kind}")) for kind in ("whl", "tar.gz"))
    run(python, "-m", "twine", "check", "--strict", wheel, sdist)
    assert "-cp311-abi3-linux_" in wheel.name
    assert "manylinux_" in run(python, "-m", "auditwheel", "show", wheel)
    names = zipfile.ZipFile(wheel).namelist()
    assert "phalanx/records/_native.abi3.so" in names
    assert not [name for name in names if name.startswith("tests") or name.endswith(".c")]
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("preload.c") for name in archive.getnames())

    # Without a compiler, the sdist installs, and the codec in Python takes over.
    run(*pip, "install", "--target", tmp_path / "plain", f"{sdist}[records]", CC="/bin/false")
    shown = run(
        python, "-c", "import phalanx.records.codec as c; print(c.__name__)",
        PYTHONPATH=str(tmp_path / "plain"),
    )  # fmt: skip
    assert shown == "phalanx.records.codec\n"
    assert not list((tmp_path / "plain/phalanx").rglob("*.so"))

    run(*pip, "install", f"{wheel}[cpu]")
    phalanx_command = tmp_path / "env/bin/phalanx"
    train = (ROOT / "examples/mnist/train.py", "--model-dir", "model", "--train-steps", "50")
    shown = run(phalanx_command, "run", "--workers", "1", "--ps", "1", *train)
    assert "checkpoints   model (step 50)" in shown
