"""Load weights from checkpoints in any format of TensorFlow 1 and 2 and of Keras."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from phalanx.errors import CheckpointError, ConfigurationError
from phalanx.train.model_dir.checkpoint import restore_all
from phalanx.train.model_dir.index_check import check_index
from phalanx.train.model_dir.intact import explain_damage, load_first
from phalanx.train.model_dir.layout import candidate_checkpoints, checkpoint_name
from phalanx.train.model_dir.table_changes import check_base, find_base, read_tensor
from phalanx.train.model_dir.weights_file import open_weights_file
from phalanx.train.types import Array, KerasVariable, Model

LOG = logging.getLogger("phalanx")

_OTHER_STRUCTURE = (ValueError, OSError, KeyError, TypeError, AttributeError, IndexError)
"""What Keras and TensorFlow raise when they read a file of another structure."""


@dataclass(frozen=True)
class WeightSource:
    """The weights in a checkpoint, by name."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Array]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Alternative names of some weights."""


def warm_start(
    variables: Mapping[str, KerasVariable],
    model: Model,
    path: str,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """Load the chosen weights into a model's variables, and return the names of these."""
    return load_first(
        find_checkpoints(path), lambda found: _load_from(found, variables, model, prefix, names)
    )[1]


def _load_from(
    path: str,
    variables: Mapping[str, KerasVariable],
    model: Model,
    prefix: str,
    names: Mapping[str, str] | None,
) -> list[str]:
    with explain_damage(path), ExitStack() as stack:
        checked = path
        if not path.endswith((".keras", ".h5")):
            check_index(path)
            if (base := find_base(path)) is not None:
                check_index(base)
                check_base(path, base)
        else:
            size = sum(8 * math.prod(variable.shape) for variable in variables.values())
            checked = stack.enter_context(open_weights_file(path, size))
        if not prefix and not names and _load_whole(model, path, checked):
            loaded = sorted(variables)
        else:
            source = stack.enter_context(open_source(checked))
            wanted = _choose(variables, prefix, names or {})
            if not wanted:
                raise ConfigurationError(
                    f"prefix={prefix!r} and names={names} choose none of the model's weights: it "
                    f"has {_list_names(variables)}"
                )
            _load_by_name(variables, wanted, source, path)
            loaded = sorted(wanted)
    LOG.info("warm start: %d of %d weights from %s", len(loaded), len(variables), path)
    return loaded


def find_checkpoints(path: str) -> list[str]:
    """Return the path itself, or those of the checkpoints in a directory, the newest first."""
    if path.endswith((".keras", ".h5")):
        if not tf.io.gfile.exists(path):
            raise ConfigurationError(f"there is no file {path}")
        return [path]
    if tf.io.gfile.isdir(path):
        # The first format of TensorFlow 1 has no index file, which ours looks for.
        found = candidate_checkpoints(path) or [tf.train.latest_checkpoint(path)]
        if found == [None]:
            raise ConfigurationError(f"there is no checkpoint in {path}")
        return [str(each) for each in found]
    if not tf.io.gfile.glob(f"{path}.index"):
        raise ConfigurationError(
            f"there is no checkpoint {path}: give a directory, a path such as "
            f"runs/a/{checkpoint_name(100)}, or a .keras or .weights.h5 file"
        )
    return [path]


@contextmanager
def open_source(path: str) -> Iterator[WeightSource]:
    """Open a checkpoint, or a checked HDF5 file, with the names that its model gave the weights."""
    if not path.endswith(".h5"):
        yield _open_tensorflow(path)
        return
    import h5py  # noqa: PLC0415

    with h5py.File(Path(path)) as file:
        yield _open_h5(file)


def _load_whole(model: Model, path: str, checked: str) -> bool:
    """Load a Keras model by its structure, so that generated names do not matter."""
    if not isinstance(model, keras.Model):
        return False
    if checked.endswith(".h5"):
        try:
            model.load_weights(checked)
        except _OTHER_STRUCTURE as error:
            raise ConfigurationError(f"{path} does not fit the model: {error}") from None
        return True
    if not _read_names(path)[0]:
        return False
    try:
        restore_all(tf.train.Checkpoint(model=model), path)
    except (AssertionError, *_OTHER_STRUCTURE):
        return False  # Loading by name reports the differences.
    return True


def _choose(variables: Iterable[str], prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    """Map the names of the chosen weights to their names in the checkpoint."""
    wanted = {name: name for name in variables if name.startswith(prefix)}
    if not names:
        return wanted
    chosen = {}
    for name in wanted:
        if name in names:
            chosen[name] = names[name]
            continue
        prefixes = [p for p in names if name.startswith(p) and (p.endswith("/") or not p)]
        if prefixes:
            longest = max(prefixes, key=len)
            chosen[name] = names[longest] + name.removeprefix(longest)
    unknown = [n for n in names if not n.endswith("/") and n and n not in chosen]
    if unknown:
        raise ConfigurationError(
            f"the model has no weight {', '.join(unknown)}: it has {_list_names(wanted)}"
        )
    return chosen


def _load_by_name(
    variables: Mapping[str, KerasVariable],
    wanted: Mapping[str, str],
    source: WeightSource,
    path: str,
) -> None:
    problems = []
    found = {}
    for name, saved_name in wanted.items():
        shape = tuple(variables[name].shape)
        key = source.aliases.get(saved_name, saved_name)
        if key not in source.shapes:
            key = _numbered_name(variables, name, saved_name)
        if key not in source.shapes:
            problems.append(f"{name} {list(shape)} is not in the file as {saved_name}")
        elif source.shapes[key] != shape:
            problems.append(
                f"{name} has the shape {list(shape)}, but {key} is {list(source.shapes[key])}"
            )
        else:
            found[name] = key
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise CheckpointError(
            f"{path} does not fit the model:{listed}\nIt holds {_list_names(source.shapes)}. "
            "Choose weights by prefix, or map the model's names to these with names."
        )
    for name, key in found.items():
        try:
            variables[name].assign(source.read(key))
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{path} has no values for {name}: {error}") from None


def _numbered_name(variables: Iterable[str], name: str, saved_name: str) -> str:
    """HDF5 files number the variables of a layer, in the model's order."""
    layer = name.rpartition("/")[0]
    siblings = [other for other in variables if other.rpartition("/")[0] == layer]
    return f"{saved_name.rpartition('/')[0]}/{siblings.index(name)}"


def _open_tensorflow(path: str) -> WeightSource:
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    names, paths = _read_names(path)
    known = {name: key for name, key in names.items() if key in shapes}
    keys = _without_root(known) or {name: name for name in shapes}
    by_key = {key: name for name, key in keys.items()}
    return WeightSource(
        {name: tuple(shapes[key]) for name, key in keys.items()},
        lambda name: read_tensor(path, keys[name]),
        {path: by_key[key] for path, key in paths.items() if key in by_key},
    )


def _read_names(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Map two kinds of names to the keys of a TensorFlow 2 checkpoint; empty for TensorFlow 1.

    The names that the variables were created with, and the attributes that lead to them.
    """
    # TensorFlow has no public name for the proto that describes how objects are nested.
    from tensorflow.core.protobuf import trackable_object_graph_pb2  # noqa: PLC0415

    reader = tf.train.load_checkpoint(path)
    names: dict[str, str] = {}
    paths: dict[str, str] = {}
    if not reader.has_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"):
        return names, paths
    try:
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
            reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
        )
    except (DecodeError, TypeError) as error:
        raise CheckpointError(f"{path} does not say which objects it holds: {error}") from None
    # The optimizer refers to the weights as well: walk from the model only.
    model = [child.node_id for child in graph.nodes[0].children if child.local_name == "model"]
    visited = set[int]()
    stack = [(number, "") for number in model or [0]]
    while stack:
        number, parents = stack.pop()
        if number in visited:
            continue
        visited.add(number)
        for attribute in graph.nodes[number].attributes:
            if not attribute.full_name.endswith("seed_generator_state"):
                names[attribute.full_name] = attribute.checkpoint_key
                paths[parents.lstrip("/")] = attribute.checkpoint_key
        for child in graph.nodes[number].children:
            if not _is_from_compile(child.local_name):
                stack.append((child.node_id, f"{parents}/{child.local_name}"))
    return names, paths


def _is_from_compile(name: str) -> bool:
    """Whether `compile` added this attribute, which holds no weights."""
    return "optimizer" in name or "metric" in name or name == "_loss_tracker"


def _without_root(keys: dict[str, str]) -> dict[str, str]:
    """Remove a first component that all names share: Keras generates it for the model."""
    first = {name.partition("/")[0] for name in keys}
    if len(first) == 1 and all(name.count("/") > 1 for name in keys):
        return {name.partition("/")[2]: key for name, key in keys.items()}
    return keys


def _open_h5(file: Any) -> WeightSource:
    """Find the weights in a file that names the layers and numbers the variables of each."""
    import h5py  # noqa: PLC0415

    found: dict[str, Any] = {}
    groups: list[tuple[Any, tuple[str, ...]]] = [(file, ())]
    while groups:
        group, parents = groups.pop()
        variables = group.get("vars")
        if not isinstance(variables, h5py.Group):
            variables = None
        layer = variables.attrs.get("name") if variables is not None else None
        path = (*parents, str(layer)) if layer is not None and group.name != "/" else parents
        for number, dataset in variables.items() if variables is not None else ():
            if isinstance(dataset, h5py.Dataset):
                found["/".join((*path, number))] = dataset
        for key, inner in group.items():
            if key not in ("vars", "optimizer") and isinstance(inner, h5py.Group):
                groups.append((inner, path))
    shapes = {name: tuple(dataset.shape) for name, dataset in found.items()}
    return WeightSource(shapes, lambda name: np.asarray(found[name]))


def _list_names(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - 20} more" if len(every) > 20 else ""
    return ", ".join(every[:20]) + more
