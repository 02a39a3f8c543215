"""A trained model as a SavedModel, in versioned directories as TensorFlow Serving wants them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.experiment import Experiment, experiment_name
from phalanx.train.export.signatures import Servable, make_servable
from phalanx.train.model_dir.checkpoint_loader import TrainedModel

LOG = logging.getLogger("phalanx")

ABOUT = "assets.extra/phalanx.json"


def export(
    experiment: Experiment, trained: TrainedModel, directory: str, version: int | None = None
) -> str:
    """Write `directory/VERSION`, all at once; the version is the next number unless given."""
    tf.io.gfile.makedirs(directory)
    there = versions(directory)
    version = version if version is not None else max([0, *there]) + 1
    if version in there:
        raise ConfigurationError(
            f"{directory} has a version {version} already: leave --version out for the next one"
        )
    target = f"{directory}/{version}"
    # TensorFlow Serving takes a directory as soon as its name is a number.
    unfinished = f"{directory}/.unfinished-{version}-{os.getpid()}"
    try:
        _write(make_servable(experiment, trained.model, trained.input_spec), trained, unfinished)
        _describe(experiment, trained, unfinished)
        tf.io.gfile.rename(unfinished, target)
    except BaseException:
        if tf.io.gfile.exists(unfinished):
            tf.io.gfile.rmtree(unfinished)
        raise
    LOG.info("exported step %d to %s", trained.step, target)
    return target


def versions(directory: str) -> list[int]:
    """The versions in a directory, in order."""
    if not tf.io.gfile.isdir(directory):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(directory)]
    return sorted(int(name) for name in names if name.isdecimal())


def find_version(directory: str, version: int | None = None) -> tuple[str, int]:
    """A SavedModel and its version: the highest, unless one is asked for."""
    if tf.io.gfile.exists(f"{directory}/saved_model.pb"):
        name = directory.rstrip("/").rpartition("/")[2]
        return directory, int(name) if name.isdecimal() else 1
    there = versions(directory)
    wanted = version if version is not None else max(there, default=None)
    if wanted is None or wanted not in there:
        found = f"it has {', '.join(map(str, there))}" if there else "it has none"
        raise ConfigurationError(
            f"there is no SavedModel {'' if wanted is None else f'of version {wanted} '}in "
            f"{directory}: {found}; write one with `phalanx export`"
        )
    return f"{directory}/{wanted}", wanted


def _write(servable: Servable, trained: TrainedModel, path: str) -> None:
    model = trained.model
    with _quiet():
        if isinstance(model, keras.Model):
            archive = keras.export.ExportArchive()
            archive.track(model)
            for name, function in servable.signatures.items():
                specs = list(servable.inputs[name].values())
                archive.add_endpoint(name, function, input_signature=specs)
            archive.write_out(path, verbose=False)
            return
        root = tf.Module()
        root.kept = [variable.value for variable in trained.variables]
        signatures: dict[str, Callable[..., Any]] = {
            name: tf.function(function, input_signature=list(servable.inputs[name].values()))
            for name, function in servable.signatures.items()
        }
        tf.saved_model.save(root, path, signatures=signatures)


def _describe(experiment: Experiment, trained: TrainedModel, path: str) -> None:
    about = {
        "experiment": experiment_name(experiment),
        "step": trained.step,
        "checkpoint": trained.checkpoint,
        "evaluation": dict(trained.evaluation.values),
    }
    tf.io.gfile.makedirs(f"{path}/assets.extra")
    with tf.io.gfile.GFile(f"{path}/{ABOUT}", "w") as file:
        file.write(json.dumps(about, indent=2) + "\n")


@contextlib.contextmanager
def _quiet() -> Any:
    """Saving says where it saves; so do we, once."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
