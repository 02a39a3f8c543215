"""A model with the weights of one of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig
from phalanx.train.experiment import Experiment, call
from phalanx.train.model_dir.checkpoint import Checkpoints, fill, reading
from phalanx.train.model_dir.metrics_log import Evaluation, is_better, read_evaluations
from phalanx.train.runtime.task_data import make_eval_data, make_train_data
from phalanx.train.runtime.topology import make_context
from phalanx.train.step.step_function import StepFunction


@dataclass(frozen=True)
class TrainedModel:
    """A model as it was at a step of its run."""

    model: Any
    step: int
    checkpoint: str
    input_spec: Any = None
    """What the data gives to the model; None where the model itself says it."""
    variables: tuple[Any, ...] = ()
    """Those of a model that is no Keras model."""
    evaluation: Evaluation = field(default_factory=lambda: Evaluation(0))


def choose_checkpoint(
    directory: str,
    which: str = "last",
    metric: str = "loss",
    best: Literal["min", "max"] | None = None,
) -> tuple[str, Evaluation]:
    """The path of the last or the best checkpoint there is, and what is known of it."""
    state = tf.train.get_checkpoint_state(directory)
    paths = {_step(path): path for path in (state.all_model_checkpoint_paths if state else ())}
    paths = {step: path for step, path in paths.items() if tf.io.gfile.glob(f"{path}.index")}
    if not paths:
        raise ConfigurationError(f"there is no checkpoint in {directory}: has the run saved yet?")
    evaluations = {e.step: e for e in read_evaluations(directory)}
    if which == "last":
        step = max(paths)
    elif which == "best":
        step = _find_best([e for e in evaluations.values() if e.step in paths], metric, best)
    else:
        wanted = _step(which)
        if wanted not in paths:
            raise ConfigurationError(
                f"there is no checkpoint {which} in {directory}: there are steps "
                f"{', '.join(map(str, sorted(paths)))}, `last` and `best`"
            )
        step = wanted
    return paths[step], evaluations.get(step, Evaluation(step))


def load_trained(experiment: Experiment, config: RunConfig, checkpoint: str) -> TrainedModel:
    """Make the model and load the weights; data is read if the model does not know its inputs."""
    if config.mixed_precision is not None:
        keras.mixed_precision.set_global_policy(f"mixed_{config.mixed_precision}")
    context = make_context(config.replace(accumulate=1), 1, 1, 0)
    model = call(experiment.model, context)
    if isinstance(model, keras.Model) and model.built and getattr(model, "inputs", None):
        _load(model, checkpoint)
        return TrainedModel(model, _step(checkpoint), checkpoint)
    data = make_eval_data(experiment, context) or make_train_data(experiment, context)
    step = StepFunction(experiment, context)
    step.build(None, data.element_spec)
    Checkpoints(str(config.model_dir), step, step.make_host_variables()).load_model(checkpoint)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data.element_spec)
    variables = tuple(step.named.values())
    return TrainedModel(step.model, _step(checkpoint), checkpoint, x, variables)


def _load(model: Any, path: str) -> None:
    with reading(path, "model"):
        fill(tf.train.Checkpoint(model=model), path)


def _find_best(
    evaluations: list[Evaluation], metric: str, best: Literal["min", "max"] | None
) -> int:
    known = [e for e in evaluations if metric in e.values]
    if not known:
        names = sorted({name for e in evaluations for name in e.values})
        raise ConfigurationError(
            f"no checkpoint that is kept was evaluated by {metric!r}: "
            + (f"there are {', '.join(names)}" if names else "run `phalanx evaluate` first")
        )
    leader = known[0]
    for other in known[1:]:
        if is_better(other.values[metric], leader.values[metric], metric, best):
            leader = other
    return leader.step


def _step(path: str) -> int:
    number = str(path).rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
