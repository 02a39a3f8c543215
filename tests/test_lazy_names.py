"""Public names that are loaded when they are first used."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from phalanx.lazy_names import lazy_names


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with a name from one module, a module, and a name that needs TensorFlow."""
    folder = tmp_path / "lazy_example"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "numbers.py").write_text("one = 1")
    (folder / "tools.py").touch()
    (folder / "training.py").write_text("import tensorflow; train = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    import lazy_example  # type: ignore[import-not-found]

    load, list_names, names = lazy_names(
        "lazy_example",
        {
            "lazy_example.numbers": ("one",),
            "lazy_example.tools": ("tools",),
            "lazy_example.training": ("train",),
        },
    )
    monkeypatch.setattr(lazy_example, "__getattr__", load, raising=False)
    monkeypatch.setattr(lazy_example, "__dir__", list_names, raising=False)
    monkeypatch.setattr(lazy_example, "__all__", names, raising=False)
    assert isinstance(lazy_example, ModuleType)
    return lazy_example


def test_names_and_modules_are_loaded_on_first_use(package: ModuleType) -> None:
    assert "lazy_example.numbers" not in sys.modules
    assert {"one", "tools", "train"} <= set(dir(package))
    assert package.one == 1
    assert package.tools is sys.modules["lazy_example.tools"]


def test_name_follows_its_module(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert package.one == 1
    monkeypatch.setattr("lazy_example.numbers.one", 2)
    assert package.one == 2


def test_missing_package_is_named_with_its_extra(package: ModuleType) -> None:
    message = r"lazy_example.train needs TensorFlow, which .*: pip install 'phalanx\[cpu\]'"
    with pytest.raises(ImportError, match=message):
        _ = package.train


def test_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'lazy_example' has no attribute 'two'"):
        _ = package.two
