"""The names of TensorFlow that the source of a program uses."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.compat.tf1.missing import TOSTRING

_ROOTS = ("tensorflow", "tensorlayer", "tensorflow_estimator")


@dataclass(frozen=True)
class Use:
    """A full name, as in `tensorflow.train.AdamOptimizer`, and the line where it is used."""

    name: str
    line: int


def find_uses(source: str) -> list[Use]:
    """Return every use of a name of TensorFlow, in the order of the lines.

    >>> find_uses("import tensorflow as tf\\nsession = tf.Session()")
    [Use(name='tensorflow.Session', line=2)]

    Raises:
        SyntaxError: The source is not Python 3.
    """
    tree = ast.parse(source)
    names = _find_aliases(tree)
    uses = [*_find_attributes(tree, names), *_find_imports(tree), *_find_tostring(tree)]
    # tf.compat.v1 is what `import tensorflow` returns under --tf1.
    old = {Use(use.name.replace("tensorflow.compat.v1", "tensorflow", 1), use.line) for use in uses}
    return sorted((use for use in old if "." in use.name), key=lambda use: (use.line, use.name))


def _find_aliases(tree: ast.Module) -> dict[str, str]:
    """Map the names of the program to the modules and names of TensorFlow that they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in _ROOTS:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    names[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom) and _is_root(node):
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    # As in `flags = tf.app.flags`.
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], _full_name(statement.value, names)
            if isinstance(target, ast.Name) and value is not None:
                names.setdefault(target.id, value)
    return names


def _find_attributes(tree: ast.Module, names: dict[str, str]) -> Iterator[Use]:
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        is_load = isinstance(getattr(node, "ctx", None), ast.Load)
        if isinstance(node, ast.Attribute | ast.Name) and is_load and id(node) not in inner:
            name = _full_name(node, names)
            if name is not None:
                yield Use(name, node.lineno)


def _find_imports(tree: ast.Module) -> Iterator[Use]:
    """Yield what `from tensorflow... import` names: it must exist even if it is not used."""
    used = {node.value.id for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_root(node):
            for alias in node.names:
                if (alias.asname or alias.name) not in used:
                    yield Use(f"{node.module}.{alias.name}", node.lineno)


def _find_tostring(tree: ast.Module) -> Iterator[Use]:
    """Yield `image.tostring()`: without an argument, it is the method of an array."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="tostring"), args=[], keywords=[]):
                yield Use(TOSTRING, node.lineno)


def _is_root(node: ast.ImportFrom) -> bool:
    return node.level == 0 and (node.module or "").partition(".")[0] in _ROOTS


def _full_name(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _full_name(node.value, names)
        return None if base is None else f"{base}.{node.attr}"
    return None
