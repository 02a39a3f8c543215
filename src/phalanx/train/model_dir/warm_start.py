"""Weights from other checkpoints, of any format that TensorFlow and Keras have had."""

from __future__ import annotations

import logging
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError

LOG = logging.getLogger("phalanx")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Source:
    """The weights in a checkpoint, by name."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Array]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names that some of them have."""


def warm_start(
    variables: Mapping[str, Any],
    model: Any,
    path: str,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """Load what is asked for into a model's variables; returns the names of those loaded."""
    path = find_checkpoint(path)
    if not prefix and not names and _load_whole(model, path):
        loaded = sorted(variables)
    else:
        source = open_source(path)
        wanted = _choose(variables, prefix, names or {})
        if not wanted:
            raise ConfigurationError(
                f"none of the model's weights is chosen by prefix={prefix!r} and names={names}: it "
                f"has {_listed(variables)}"
            )
        _load(variables, wanted, source, path)
        loaded = sorted(wanted)
    LOG.info("warm start: %d of %d weights from %s", len(loaded), len(variables), path)
    return loaded


def find_checkpoint(path: str) -> str:
    """The file or prefix itself, or the last checkpoint of a directory."""
    if path.endswith((".keras", ".h5")):
        if not tf.io.gfile.exists(path):
            raise ConfigurationError(f"there is no file {path}")
        return path
    if tf.io.gfile.isdir(path):
        latest = tf.train.latest_checkpoint(path)
        if latest is None:
            raise ConfigurationError(f"there is no checkpoint in {path}")
        return str(latest)
    if not tf.io.gfile.glob(f"{path}.index"):
        raise ConfigurationError(
            f"there is no checkpoint {path}: give a directory, a path such as "
            "runs/a/model.ckpt-100, or a .keras or .weights.h5 file"
        )
    return path


def open_source(path: str) -> Source:
    """The weights of any checkpoint, under the names that its model gave them."""
    if path.endswith(".keras"):
        return _open_archive(path)
    return _open_h5(path) if path.endswith(".h5") else _open_tensorflow(path)


def _load_whole(model: Any, path: str) -> bool:
    """By structure, where the model is a Keras model: names that Keras made up do not matter."""
    if not isinstance(model, keras.Model):
        return False
    if path.endswith((".keras", ".h5")):
        try:
            model.load_weights(path)
        except ValueError as error:
            raise ConfigurationError(f"{path} does not fit the model: {error}") from None
        return True
    if not _read_names(path).full:
        return False
    try:
        status = tf.train.Checkpoint(model=model).restore(path)
        status.assert_existing_objects_matched()
        status.expect_partial()
    except (AssertionError, ValueError):
        return False  # By name, the differences are named.
    return True


def _choose(variables: Iterable[str], prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    """From the model's names to the checkpoint's, for what is to be loaded."""
    wanted = {name: name for name in variables if name.startswith(prefix)}
    if not names:
        return wanted
    chosen = {}
    for name in wanted:
        if name in names:
            chosen[name] = names[name]
            continue
        begins = [b for b in names if name.startswith(b) and (b.endswith("/") or not b)]
        if begins:
            longest = max(begins, key=len)
            chosen[name] = names[longest] + name.removeprefix(longest)
    unknown = [n for n in names if not n.endswith("/") and n and n not in chosen]
    if unknown:
        raise ConfigurationError(
            f"the model has no weight {', '.join(unknown)}: it has {_listed(wanted)}"
        )
    return chosen


def _load(
    variables: Mapping[str, Any], wanted: Mapping[str, str], source: Source, path: str
) -> None:
    problems = []
    found = {}
    for name, theirs in wanted.items():
        shape = tuple(variables[name].shape)
        place = source.aliases.get(theirs, theirs)
        if place not in source.shapes:
            place = _by_number(variables, name, theirs)
        if place not in source.shapes:
            problems.append(f"{name} {list(shape)} is not there as {theirs}")
        elif source.shapes[place] != shape:
            problems.append(
                f"{name} has the shape {list(shape)}, but {place} is {list(source.shapes[place])}"
            )
        else:
            found[name] = place
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise ConfigurationError(
            f"{path} does not fit the model:{listed}\nIt holds {_listed(source.shapes)}. Choose by "
            "prefix, or lead from the model's names to these by names."
        )
    for name, place in found.items():
        variables[name].assign(source.read(place))


def _by_number(variables: Mapping[str, Any], name: str, theirs: str) -> str:
    """HDF5 files number the variables of a layer; the model's order is the same."""
    layer = name.rpartition("/")[0]
    beside = [other for other in variables if other.rpartition("/")[0] == layer]
    return f"{theirs.rpartition('/')[0]}/{beside.index(name)}"


def _open_tensorflow(path: str) -> Source:
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    names = _read_names(path)
    keys = _without_root(names.full) or {name: name for name in shapes}
    by_key = {key: name for name, key in keys.items()}
    return Source(
        {name: tuple(shapes[key]) for name, key in keys.items()},
        lambda name: np.asarray(reader.get_tensor(keys[name])),
        {path: by_key[key] for path, key in names.paths.items() if key in by_key},
    )


@dataclass(frozen=True)
class _Names:
    """What leads to the keys of a TensorFlow 2 checkpoint; empty for one of TensorFlow 1."""

    full: dict[str, str] = field(default_factory=dict)
    """The names that variables were made with."""
    paths: dict[str, str] = field(default_factory=dict)
    """The attributes that lead to them."""


def _read_names(path: str) -> _Names:
    # The message that says how objects are nested is part of TensorFlow's files, but has no name
    # under `tf.`.
    from tensorflow.core.protobuf import trackable_object_graph_pb2  # noqa: PLC0415

    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"):
        return _Names()
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
    )
    # Weights belong to the optimizer as well: the model's are those that its branch leads to.
    model = [child.node_id for child in graph.nodes[0].children if child.local_name == "model"]
    names, reached = _Names(), set[int]()
    ahead = [(number, "") for number in model or [0]]
    while ahead:
        number, here = ahead.pop()
        if number in reached:
            continue
        reached.add(number)
        for attribute in graph.nodes[number].attributes:
            if not attribute.full_name.endswith("seed_generator_state"):
                names.full[attribute.full_name] = attribute.checkpoint_key
                names.paths[here.lstrip("/")] = attribute.checkpoint_key
        for child in graph.nodes[number].children:
            if not _is_compiled(child.local_name):
                ahead.append((child.node_id, f"{here}/{child.local_name}"))
    return names


def _is_compiled(name: str) -> bool:
    """What `compile` adds to a model: no weights."""
    return "optimizer" in name or "metric" in name or name == "_loss_tracker"


def _without_root(keys: dict[str, str]) -> dict[str, str]:
    """A name that all others begin with is the model's own, which Keras makes up."""
    first = {name.partition("/")[0] for name in keys}
    if len(first) == 1 and all(name.count("/") > 1 for name in keys):
        return {name.partition("/")[2]: key for name, key in keys.items()}
    return keys


def _open_archive(path: str) -> Source:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
        archive.extract("model.weights.h5", folder)
        return _open_h5(f"{folder}/model.weights.h5")


def _open_h5(path: str) -> Source:
    """Layers by their names, and in each its variables by number."""
    import h5py  # noqa: PLC0415

    found: dict[str, Array] = {}

    def walk(group: Any, above: tuple[str, ...]) -> None:
        own = group.get("vars")
        named = own.attrs.get("name") if own is not None else None
        here = (*above, str(named)) if named is not None and group.name != "/" else above
        for number, values in own.items() if own is not None else ():
            found["/".join((*here, number))] = np.asarray(values)
        for key, inner in group.items():
            if key not in ("vars", "optimizer") and isinstance(inner, h5py.Group):
                walk(inner, here)

    with h5py.File(Path(path)) as file:
        walk(file, ())
    return Source({name: tuple(v.shape) for name, v in found.items()}, lambda name: found[name])


def _listed(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - 20} more" if len(every) > 20 else ""
    return ", ".join(every[:20]) + more
