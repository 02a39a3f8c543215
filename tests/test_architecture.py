"""The architecture is what docs/architecture.md says: who may import whom, and what is public."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx

SOURCE = Path(phalanx.__file__).parent

# Every part, and the parts it may import. `cli` sits on top.
MAY_IMPORT = {
    "errors": set[str](),
    "open_files": {"errors"},
    "cluster": {"errors", "open_files"},
    "records": {"errors", "open_files", "cluster"},
    "data": {"errors", "open_files", "cluster", "records"},
    "train": {"errors", "open_files", "cluster", "records", "data"},
    "models": {"errors"},
    "serving": {"errors", "open_files", "cluster", "records", "data", "train"},
    "launch": {"errors", "open_files", "cluster"},
    "spark": {"errors", "open_files", "cluster", "records", "data", "train", "serving", "launch"},
    "cli": {
        "errors",
        "open_files",
        "cluster",
        "records",
        "data",
        "train",
        "models",
        "launch",
        "serving",
    },
}

# Packages whose members are siblings: they share the named modules and never import each other.
SIBLINGS = {
    "phalanx.cluster.detectors": set[str](),
    "phalanx.launch.backends": set[str](),
    "phalanx.train.engines": {"base", "reduction", "steps_per_call"},
    "phalanx.train.hooks": {"base"},
}


def module_name(path: Path) -> str:
    parts = ("phalanx", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path) -> set[str]:
    """Every module of ours that a file names in an import, wherever in the file it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("phalanx.")}


# All but the package's own __init__ and __main__, which sit above every part.
FILES = sorted(set(SOURCE.rglob("*.py")) - set(SOURCE.glob("__*.py")))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_architecture(path: Path) -> None:
    part = module_name(path).split(".")[1]
    for imported in imported_modules(path):
        other = imported.split(".")[1]
        assert other in MAY_IMPORT[part] | {part, "__version__"}, (
            f"{part} must not import {imported}"
        )


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_siblings_do_not_import_each_other(path: Path) -> None:
    name = module_name(path)
    for package, shared in SIBLINGS.items():
        if not name.startswith(package + "."):
            continue
        me = name.removeprefix(package + ".").split(".")[0]
        for imported in imported_modules(path):
            if imported.startswith(package + "."):
                other = imported.removeprefix(package + ".").split(".")[0]
                assert other in shared | {me}, f"{name} must not import its sibling {imported}"


def test_every_part_is_in_the_rules() -> None:
    parts = {module_name(path).split(".")[1] for path in FILES}
    assert parts <= set(MAY_IMPORT)


def test_neither_phalanx_nor_any_launcher_loads_tensorflow() -> None:
    modules = [module_name(path) for path in FILES if path.relative_to(SOURCE).parts[0] in LIGHT]
    modules = [name for name in modules if not name.startswith(ARROW)]
    code = "\n".join(
        [
            "import sys, phalanx",
            "dir(phalanx)",
            *(f"import {name}" for name in modules),
            "heavy = {'tensorflow', 'keras', 'numpy', 'pyarrow'} & set(sys.modules)",
            "assert not heavy, heavy",
        ]
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "phalanx.launch.backends.local.launcher" in modules


LIGHT = ("cluster", "launch", "cli", "records")

# Loaded by the functions that need them.
ARROW = (
    "phalanx.records.arrow",
    "phalanx.records.convert",
    "phalanx.records.storage.hdfs",
    "phalanx.records.spark.",
)


def test_the_public_names() -> None:
    assert set(phalanx.__all__) == {
        "Cluster",
        "ClusterError",
        "ConfigurationError",
        "Context",
        "DataError",
        "DistributedSession",
        "Experiment",
        "Interrupted",
        "JobError",
        "LaunchError",
        "LinearScaling",
        "Mode",
        "PeerError",
        "PhalanxError",
        "RecordError",
        "Result",
        "Role",
        "RunConfig",
        "TFConfig",
        "Task",
        "TaskSpec",
        "TaskSpecDef",
        "TrainingError",
        "WorkerError",
        "detect",
        "hooks",
        "layers",
        "run",
        "spark",
    }
    assert phalanx.hooks.__name__ == "phalanx.train.hooks"
    assert phalanx.layers.__name__ == "phalanx.train.layers"
    names = set(phalanx.__all__) - {"hooks", "layers", "spark"}
    assert all(getattr(phalanx, name).__module__.startswith("phalanx.") for name in names)
    assert set(phalanx.__all__) <= set(dir(phalanx))
    with pytest.raises(AttributeError, match="no attribute 'experimnt'"):
        _ = phalanx.experimnt
