"""A trained model: the experiment's model with the weights of a checkpoint."""

from dataclasses import dataclass, field

import keras
import tensorflow as tf

from phalanx.train.config import RunConfig
from phalanx.train.experiment import Experiment, call
from phalanx.train.model_dir.checkpoint import Checkpoints, restore_all
from phalanx.train.model_dir.intact import explain_read_errors
from phalanx.train.model_dir.layout import step_of
from phalanx.train.model_dir.metrics_log import MetricsEntry
from phalanx.train.model_dir.table_keys import check_keys, list_tables
from phalanx.train.runtime.task_data import make_eval_data, make_train_data
from phalanx.train.runtime.topology import make_context
from phalanx.train.step.step_function import StepFunction
from phalanx.train.types import ElementSpec, KerasVariable, Model
from phalanx.train.variables.large_variable import describe_large_variables


@dataclass(frozen=True)
class TrainedModel:
    """A model with the weights that it had at a step of its run."""

    model: Model
    step: int
    checkpoint: str
    input_spec: ElementSpec = None
    """The inputs, as the data gives them; None if the model itself knows its inputs."""
    variables: tuple[KerasVariable, ...] = ()
    """The variables of a model that is not a Keras model."""
    evaluation: MetricsEntry = field(default_factory=lambda: MetricsEntry(0))


def load_trained(experiment: Experiment, config: RunConfig, checkpoint: str) -> TrainedModel:
    """Build a run's model and load a checkpoint; open the data if the model lacks inputs."""
    if config.mixed_precision is not None:
        keras.mixed_precision.set_global_policy(f"mixed_{config.mixed_precision}")
    context = make_context(config.replace(accumulate=1), 1, 1, 0)
    number = step_of(checkpoint)
    with describe_large_variables():
        model = call(experiment.model, context)
    if isinstance(model, keras.Model) and model.built and getattr(model, "inputs", None):
        with explain_read_errors(checkpoint, "model"):
            check_keys(checkpoint, list_tables(model))
            restore_all(tf.train.Checkpoint(model=model), checkpoint)
        return TrainedModel(model, number, checkpoint)
    data = make_eval_data(experiment, context) or make_train_data(experiment, context)
    step = StepFunction(experiment, context)
    step.build(None, data.element_spec)
    Checkpoints(str(config.model_dir), step, step.make_host_variables()).load_model(checkpoint)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data.element_spec)
    return TrainedModel(step.model, number, checkpoint, x, tuple(step.named.values()))
