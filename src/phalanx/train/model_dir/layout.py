"""The files of a model_dir: their names, and how checkpoints are found.

Nothing here loads TensorFlow unless it has to: `phalanx runs` reads a model_dir without it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import ConfigurationError

if TYPE_CHECKING:
    from phalanx.train.model_dir.metrics_log import Direction, MetricsEntry

LOG = logging.getLogger("phalanx")

CHECKPOINT_PREFIX = "model.ckpt"
CHECKPOINT_LIST = "checkpoint"
"""TensorFlow's list of the checkpoints that are not deleted."""
STATUS = "status.json"
TRAINING_LOG = "train.jsonl"
TASK_FOLDER = "cluster"
EVALUATION_FOLDER = "eval"
EVALUATION_LOG = f"{EVALUATION_FOLDER}/eval.jsonl"


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"{CHECKPOINT_PREFIX}-{step}"


def step_of(path: str) -> int:
    """Return the step at the end of a checkpoint's name, or 0 if there is none.

    >>> step_of("runs/a/model.ckpt-100"), step_of("runs/a/weights")
    (100, 0)
    """
    return _parse_step(path) or 0


def _parse_step(name: str) -> int | None:
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def list_checkpoints(directory: str) -> list[str]:
    """Return the paths of the checkpoints that are not deleted, the oldest first."""
    return _read_checkpoint_list(directory)[0]


def latest_checkpoint(directory: str) -> str | None:
    """Return the path of the newest checkpoint that is not deleted; it may be damaged."""
    return next(iter(candidate_checkpoints(directory)), None)


def candidate_checkpoints(directory: str) -> list[str]:
    """Return the checkpoints to try, the newest first; any of them may be damaged."""
    paths, newest = _read_checkpoint_list(directory)
    if newest in paths:
        return [newest, *reversed(paths[: paths.index(newest)])]
    if newest and paths:
        LOG.warning("%s is missing: using %s, the checkpoint before it", newest, paths[-1])
    return paths[::-1]


def choose_checkpoints(
    directory: str, which: str = "last", metric: str = "loss", best: Direction | None = None
) -> dict[str, MetricsEntry]:
    """Find checkpoints by `last`, `best`, their step or name; return them with their evaluations.

    The first one is the one that was asked for. The others take its place, in this order, if it
    turns out to be damaged; a checkpoint that is chosen by its step has no such others.
    """
    from phalanx.train.model_dir import metrics_log  # noqa: PLC0415

    paths = {step_of(path): path for path in list_checkpoints(directory)}
    if not paths:
        raise ConfigurationError(f"there is no checkpoint in {directory}: has the run saved yet?")
    evaluations = [e for e in metrics_log.read_evaluations(directory) if e.step in paths]
    found = {e.step: e for e in evaluations}
    if which == "last":
        steps = [step_of(path) for path in candidate_checkpoints(directory)]
    elif which == "best":
        steps = [e.step for e in metrics_log.rank(evaluations, metric, best)]
    else:
        steps = [step for step in [_parse_step(which)] if step in paths and step is not None]
    if not steps:
        name = checkpoint_name(int(which)) if which.isdecimal() else which
        raise ConfigurationError(
            f"there is no checkpoint {name} in {directory}: there are steps "
            f"{', '.join(map(str, sorted(paths)))}, `last` and `best`"
        )
    return {paths[step]: found.get(step, metrics_log.MetricsEntry(step)) for step in steps}


def read_text(path: str) -> str:
    """Return the contents of a local or remote file; empty if it does not exist."""
    if "://" not in path:
        try:
            return Path(path).read_text(encoding="utf-8")
        except OSError:
            return ""
    import tensorflow as tf  # noqa: PLC0415

    try:
        with tf.io.gfile.GFile(path) as file:
            return str(file.read())
    except tf.errors.OpError:
        return ""


def _read_checkpoint_list(directory: str) -> tuple[list[str], str]:
    import tensorflow as tf  # noqa: PLC0415

    try:
        state = tf.train.get_checkpoint_state(directory)
    except ValueError:
        state = None
    if state is None or not state.model_checkpoint_path:
        return _find_checkpoints(directory), ""
    newest = str(state.model_checkpoint_path)
    # Users edit this file to go back to a checkpoint: the newest need not be listed.
    paths = dict.fromkeys([*state.all_model_checkpoint_paths, newest])
    return [path for path in paths if tf.io.gfile.exists(f"{path}.index")], newest


def _find_checkpoints(directory: str) -> list[str]:
    """Find the checkpoints of a directory without a list, or with one that cannot be read."""
    import tensorflow as tf  # noqa: PLC0415

    found = tf.io.gfile.glob(f"{directory}/{CHECKPOINT_PREFIX}-*.index")
    paths = [path.removesuffix(".index") for path in found]
    steps = {step: path for path in paths if (step := _parse_step(path)) is not None}
    if steps:
        LOG.warning(
            "%s/%s, the list of checkpoints, is missing or damaged: there are steps %s",
            directory, CHECKPOINT_LIST, ", ".join(map(str, sorted(steps))),
        )  # fmt: skip
    return [steps[step] for step in sorted(steps)]
