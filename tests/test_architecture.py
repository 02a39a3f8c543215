"""The rules of docs/architecture.md: imports, public names, and their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

import phalanx.cluster
import phalanx.errors

SOURCE = Path(phalanx.__file__).parent
ROOT = Path(__file__).parents[1]

# The modules with public names, and the protocols that launchers of other packages implement.
DOCUMENTED = [
    "phalanx",
    "phalanx.cluster",
    "phalanx.data",
    "phalanx.hooks",
    "phalanx.launch.base",
    "phalanx.layers",
    "phalanx.records",
    "phalanx.records.spark",
    "phalanx.spark",
    "phalanx.train.export",
]

# The top-level modules, and which of them each may import.
MAY_IMPORT = {
    "errors": set[str](),
    "join_on_import": set[str](),
    "lazy_names": set[str](),
    "version": set[str](),
    "printable": set[str](),
    "host_header": set[str](),
    "open_files": {"errors"},
    "metrics_endpoint": {"errors", "host_header"},
    "cluster": {"errors", "open_files"},
    "guard": {"errors"},
    "records": {"errors", "open_files", "cluster"},
    "data": {"errors", "open_files", "cluster", "records"},
    "train": {
        "errors",
        "printable",
        "open_files",
        "join_on_import",
        "metrics_endpoint",
        "cluster",
        "guard",
        "records",
        "data",
    },
    "models": {"errors"},
    "board": {"errors", "cluster", "train"},
    "compat": {"errors", "open_files", "cluster", "records", "data", "train"},
    "serving": {
        "errors",
        "host_header",
        "open_files",
        "metrics_endpoint",
        "cluster",
        "records",
        "data",
        "train",
    },
    "launch": {"errors", "open_files", "metrics_endpoint", "cluster", "guard"},
    "spark": {
        "errors",
        "open_files",
        "cluster",
        "guard",
        "records",
        "data",
        "train",
        "serving",
        "launch",
    },
    "cli": {
        "errors",
        "printable",
        "open_files",
        "metrics_endpoint",
        "cluster",
        "guard",
        "records",
        "data",
        "train",
        "models",
        "launch",
        "serving",
        "compat",
    },
}

# Packages whose modules do not import each other, and the modules that all of them may import.
SIBLINGS = {
    "phalanx.cluster.detectors": set[str](),
    "phalanx.launch.backends": set[str](),
    "phalanx.train.engines": {
        "base",
        "communication",
        "data_ends",
        "gradient_sums",
        "in_place",
        "lock",
        "lockstep",
        "numbered_updates",
        "ps_base",
        "reduction",
        "replicas",
        "shard_positions",
        "steps_per_call",
    },
    "phalanx.train.hooks": {"base"},
}


def module_name(path: Path) -> str:
    parts = ("phalanx", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path) -> set[str]:
    """Return every module of Phalanx that a file imports, at its top or in a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("phalanx.")}


# All except __init__.py and __main__.py of the package, which may import everything.
FILES = sorted(set(SOURCE.rglob("*.py")) - set(SOURCE.glob("__*.py")))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_architecture(path: Path) -> None:
    part = module_name(path).split(".")[1]
    allowed = MAY_IMPORT[part] | {part, "__version__", "lazy_names"}
    for imported in imported_modules(path):
        assert imported.split(".")[1] in allowed, f"{part} must not import {imported}"


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


def test_every_top_level_module_has_an_import_rule() -> None:
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


def test_run_loads_what_only_terminals_and_plugins_need_later() -> None:
    code = "\n".join(
        [
            "import sys, phalanx.cli.run, phalanx.launch.backends.local.launcher",
            "slow = {'rich', 'importlib.metadata'} & set(sys.modules)",
            "assert not slow, slow",
        ]
    )
    subprocess.run([sys.executable, "-c", code], check=True)


LIGHT = ("cluster", "launch", "cli", "records")

# These import pyarrow, and are imported only by the functions that need them.
ARROW = (
    "phalanx.records.arrow",
    "phalanx.records.convert",
    "phalanx.records.storage.hdfs",
    "phalanx.records.spark.",
)


# The public names of training; the others are the errors and phalanx.cluster's.
TRAINING_NAMES = {
    "Context",
    "DistributedSession",
    "Experiment",
    "LinearScaling",
    "Mode",
    "Result",
    "evaluate",
    "fit",
    "predict",
    "RunConfig",
    "TaskSpec",
    "TaskSpecDef",
    "hooks",
    "layers",
    "run",
    "spark",
}


def test_public_names_are_those_of_errors_cluster_and_training() -> None:
    errors = {
        name
        for name, value in vars(phalanx.errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    others = {"__version__", "launch_local", *phalanx.cluster.__all__, *TRAINING_NAMES}
    assert set(phalanx.__all__) == errors | others
    assert set(phalanx.__all__) <= set(dir(phalanx))


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'phalanx' has no attribute 'experimnt'"):
        _ = phalanx.experimnt


@pytest.mark.parametrize("package", ["phalanx", "phalanx.spark", "phalanx.records.spark"])
def test_lazy_names_are_those_that_type_checkers_see(package: str) -> None:
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = {
        alias.asname: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(imports) == set(module.__all__)
    for name, (home, original) in imports.items():
        assert name == original
        try:
            loaded = getattr(module, name)
        except ImportError as error:
            assert "needs Spark" in str(error)
            continue
        expected = import_module(f"{home}.{name}") if inspect.ismodule(loaded) else None
        assert loaded is (expected or getattr(import_module(str(home)), name))


def test_public_classes_have_distinct_names() -> None:
    places: dict[str, list[str]] = {}
    # The names of phalanx.compat are those of TensorFlow 1.
    for path in (each for each in FILES if "compat" not in each.relative_to(SOURCE).parts):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module_name(path))
    doubled = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert doubled == {}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_docstrings_are_in_google_style(name: str) -> None:
    package, _, attribute = name.rpartition(".")
    module = getattr(import_module(package), attribute) if package == "phalanx" else None
    module = module or import_module(name)
    names = getattr(module, "__all__", None) or [
        each
        for each, value in vars(module).items()
        if not each.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    try:
        objects = {each: getattr(module, each) for each in names}
    except ImportError as error:
        pytest.skip(str(error))
    findings = [
        f"{name}.{each}{finding}"
        for each, value in objects.items()
        for finding in find_docstring_problems(value)
    ]
    assert findings == []


def find_docstring_problems(value: object) -> Iterator[str]:
    """Yield what the docstring of a public name lacks."""
    if inspect.isclass(value):
        yield from find_class_problems(value)
    elif inspect.isfunction(value):
        yield from find_function_problems(value, value.__doc__ or "")


def find_class_problems(kind: type) -> Iterator[str]:
    doc = kind.__doc__
    if not doc:
        yield " has no docstring"
    if issubclass(kind, enum.Enum):
        return
    fields: set[str] = set()
    if dataclasses.is_dataclass(kind):
        fields = {field.name for field in dataclasses.fields(kind)}
    elif "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False):
        for parameter in inspect.signature(kind).parameters:
            if parameter not in ("options", "kwargs") and f"{parameter}:" not in (doc or ""):
                yield f": Args: lacks {parameter}"
    for name, member in vars(kind).items():
        inherited = any(name in vars(base) for base in kind.__mro__[1:])
        if name.startswith("_") or name in fields or inherited:
            continue
        function = getattr(member, "__func__", member)
        if not inspect.isfunction(function):
            continue
        # A method with one parameter may explain it in its summary.
        if not function.__doc__:
            yield f".{name} has no docstring"
        elif len(inspect.signature(function).parameters) > 2:
            for problem in find_function_problems(function, function.__doc__):
                yield f".{name}{problem}"


def find_function_problems(function: Callable[..., object], doc: str) -> Iterator[str]:
    summary = doc.strip().partition("\n")[0]
    if not summary.endswith((".", ":", "?")):
        yield f": the summary is not one sentence: {summary!r}"
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters if each not in ("self", "cls")]
    if not parameters:
        return
    _, heading, section = doc.partition("Args:")
    if not heading:
        yield " has no Args:"
    else:
        yield from (f": Args: lacks {each}" for each in parameters if f"{each}:" not in section)
    returned = str(signature.return_annotation)
    nothing = ("None", "Iterator[None]", "NoReturn", str(inspect.Signature.empty))
    if not returned.startswith(nothing) and "Returns:" not in doc and "Yields:" not in doc:
        yield " has no Returns:"


def test_paths_in_the_architecture_page_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    paths = re.findall(r"`([\w./-]+(?:\.py|/))`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert paths
    roots = (SOURCE, SOURCE.parent, ROOT)
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


@pytest.mark.parametrize("path", sorted((SOURCE / "cli").rglob("*.py")), ids=module_name)
def test_commands_print_through_the_module_that_escapes_control_characters(path: Path) -> None:
    printing = re.search(r"click\.s?echo\(|(?<!\.)\bprint\(", path.read_text())
    assert (printing is None) == (path.name != "printing.py")


def test_no_parser_of_flags_accepts_abbreviations() -> None:
    """`--steps` must not set `--steps-per-call`; `RunConfig.add_flags` sees to it by itself."""
    folders = ("benchmarks", "examples", "src", "tools")
    parsers = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^[^>]*argparse\.ArgumentParser\(", path.read_text(), re.MULTILINE)
    ]
    assert len(parsers) > 10
    safe = re.compile(r"allow_abbrev=False|\badd_flags\(")
    assert [str(path) for path in parsers if not safe.search(path.read_text())] == []
