"""Export a trained model as a SavedModel, in numbered versions as TensorFlow Serving reads them."""

import json
import logging
import os
from collections.abc import Callable

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.experiment import Experiment, experiment_name
from phalanx.train.export.signatures import Servable, hide_log, make_servable
from phalanx.train.model_dir.checkpoint_loader import TrainedModel

LOG = logging.getLogger("phalanx")

_EXTRA_ASSETS = "assets.extra"


def export(
    experiment: Experiment, trained: TrainedModel, directory: str, version: int | None = None
) -> str:
    """Export a trained model as `directory/VERSION`, which appears only when it is complete.

    Args:
        experiment: Its `example_features` and `preprocess` make the signature `serving_examples`.
        trained: The model, as `load_trained` returns it.
        directory: The directory of all versions of the model.
        version: The number of this version. The default is the next number.

    Returns:
        The path of the SavedModel.

    Raises:
        ConfigurationError: The version exists already, or the model cannot be exported.
    """

    def write(path: str) -> str:
        _write(make_servable(experiment, trained.model, trained.input_spec), trained, path)
        _write_description(experiment, trained, path)
        return path

    target = add_version(directory, version, write)
    LOG.info("exported step %d to %s", trained.step, target)
    return target


def add_version(directory: str, version: int | None, write: Callable[[str], str]) -> str:
    """Add a version to a directory, which appears there only when it is complete.

    Args:
        directory: The directory of all versions of the model.
        version: The number of this version. The default is the next number.
        write: Writes the SavedModel to a path or below it, and returns where.

    Returns:
        The path of the SavedModel.

    Raises:
        ConfigurationError: The version exists already.
    """
    tf.io.gfile.makedirs(directory)
    existing = list_versions(directory)
    version = version if version is not None else max([0, *existing]) + 1
    if version in existing:
        raise ConfigurationError(
            f"{directory} already has a version {version}: remove --version to write the next one"
        )
    target = f"{directory}/{version}"
    # TensorFlow Serving loads a directory as soon as its name is a number.
    unfinished = f"{directory}/.unfinished-{version}-{os.getpid()}"
    try:
        tf.io.gfile.rename(write(unfinished), target)
    finally:
        if tf.io.gfile.exists(unfinished):
            tf.io.gfile.rmtree(unfinished)
    return target


def list_versions(directory: str) -> list[int]:
    """Return the versions in a directory, in order."""
    if not tf.io.gfile.isdir(directory):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(directory)]
    return sorted(int(name) for name in names if name.isdecimal())


def find_version(directory: str, version: int | None = None) -> tuple[str, int]:
    """Return the path and the version of a SavedModel: the given version, or the highest."""
    if tf.io.gfile.exists(f"{directory}/saved_model.pb"):
        name = directory.rstrip("/").rpartition("/")[2]
        return directory, int(name) if name.isdecimal() else 1
    existing = list_versions(directory)
    if not existing and (inner := _find_exports(directory)):
        return find_version(inner, version)
    wanted = version if version is not None else max(existing, default=None)
    if wanted is None or wanted not in existing:
        found = f"it has {', '.join(map(str, existing))}" if existing else "it has none"
        raise ConfigurationError(
            f"there is no SavedModel {'' if wanted is None else f'of version {wanted} '}in "
            f"{directory}: {found}; write one with `phalanx export`"
        )
    return f"{directory}/{wanted}", wanted


def _find_exports(model_dir: str) -> str | None:
    """Return the directory of the exports below the model_dir of an Estimator."""
    base = f"{model_dir}/export"
    if not tf.io.gfile.isdir(base):
        return None
    names = [f"{base}/{name.rstrip('/')}" for name in sorted(tf.io.gfile.listdir(base))]
    found = [name for name in names if list_versions(name)]
    if len(found) > 1:
        raise ConfigurationError(
            f"{model_dir} has the exports {', '.join(found)}: name one of these directories"
        )
    return found[0] if found else None


def _write(servable: Servable, trained: TrainedModel, path: str) -> None:
    signatures = {name: list(specs.values()) for name, specs in servable.inputs.items()}
    with hide_log(logging.WARNING):
        if isinstance(trained.model, keras.Model):
            archive = keras.export.ExportArchive()
            archive.track(trained.model)
            for name, function in servable.functions.items():
                archive.add_endpoint(name, function, input_signature=signatures[name])
            archive.write_out(path, verbose=False)
            return
        root = tf.Module()
        root.variables_to_save = [variable.value for variable in trained.variables]
        functions = {
            name: tf.function(function, input_signature=signatures[name])
            for name, function in servable.functions.items()
        }
        tf.saved_model.save(root, path, signatures=functions)


def _write_description(experiment: Experiment, trained: TrainedModel, path: str) -> None:
    description = {
        "experiment": experiment_name(experiment),
        "step": trained.step,
        "checkpoint": trained.checkpoint,
        "evaluation": dict(trained.evaluation.values),
    }
    tf.io.gfile.makedirs(f"{path}/{_EXTRA_ASSETS}")
    with tf.io.gfile.GFile(f"{path}/{_EXTRA_ASSETS}/phalanx.json", "w") as file:
        file.write(json.dumps(description, indent=2) + "\n")
