"""tf.contrib.learn.learn_runner: runs an experiment as the task of this process."""

import inspect
from collections.abc import Callable
from typing import Any

from phalanx.compat.tf1.contrib.learn.experiment import Experiment
from phalanx.compat.tf1.contrib.learn.run_config import RunConfig
from phalanx.compat.tf1.estimator import run_config as core
from phalanx.compat.tf1.estimator.run_config import TaskType

_SCHEDULES = {
    TaskType.MASTER: "train_and_evaluate",
    TaskType.CHIEF: "train_and_evaluate",
    TaskType.WORKER: "train",
    TaskType.EVALUATOR: "continuous_eval",
}


def run(
    experiment_fn: Callable[..., Experiment],
    output_dir: str | None = None,
    schedule: str | None = None,
    run_config: core.RunConfig | None = None,
    hparams: Any = None,
) -> Any:
    """Make an experiment, and run the method for the task of this process.

    Args:
        experiment_fn: Returns an `Experiment`. With a run_config it is called with run_config and
            hparams, otherwise with output_dir.
        output_dir: The directory of the run, for an experiment_fn without a run_config.
        schedule: The method of the experiment; by default `train_and_evaluate` on the master and in
            one process, `train` on a worker. A ps serves, whatever schedule trains.
        run_config: The settings, with a model_dir.
        hparams: The hyperparameters.

    Returns:
        What the method has returned.
    """
    if not callable(experiment_fn):
        raise TypeError(f"learn_runner.run: experiment_fn is {experiment_fn!r}: pass a function")
    if run_config is not None:
        if output_dir is not None:
            raise ValueError("learn_runner.run: set output_dir or run_config, not both")
        if not run_config.model_dir:
            raise ValueError(
                "learn_runner.run: the run_config has no model_dir: RunConfig(model_dir=...), or "
                "run_config.replace(model_dir=...)"
            )
        experiment = _call(experiment_fn, run_config, hparams)
    else:
        if not output_dir:
            raise ValueError("learn_runner.run: set run_config, or output_dir")
        if hparams is not None:
            raise ValueError("learn_runner.run: hparams need a run_config")
        experiment = experiment_fn(output_dir)
    if not isinstance(experiment, Experiment):
        raise TypeError(
            f"the experiment_fn returned a {type(experiment).__name__}: return a "
            "tf.contrib.learn.Experiment"
        )
    config = run_config or experiment.estimator.config
    name = choose_schedule(config, schedule)
    method = getattr(experiment, name, None)
    if name.startswith("_") or not callable(method):
        known = ", ".join(
            sorted({*_SCHEDULES.values(), "evaluate", "local_run", "run_std_server", "test"})
        )
        raise ValueError(f"an experiment has no schedule {name!r}: there are {known}")
    return method()


def choose_schedule(config: core.RunConfig, asked: str | None = None) -> str:
    """Return the method of an experiment for the task of a config.

    Args:
        config: The config.
        asked: The schedule that the program names, the same on all tasks.

    Returns:
        The name of the method.
    """
    if config.task_type == TaskType.PS and (asked is None or "train" in asked):
        return "run_std_server"
    is_local = not config.cluster_spec.jobs and config.task_type != TaskType.EVALUATOR
    return asked or ("train_and_evaluate" if is_local else _SCHEDULES[config.task_type])


def _call(experiment_fn: Callable[..., Any], config: core.RunConfig, hparams: Any) -> Any:
    """Call a function that takes (run_config, hparams), whatever it calls them."""
    names = list(inspect.signature(experiment_fn).parameters)
    if "hparams" in names and "run_config" in names:
        return experiment_fn(run_config=config, hparams=hparams)
    if len(names) == 1:
        return experiment_fn(config)
    return experiment_fn(config, hparams)


def tune(experiment_fn: Callable[..., Experiment], tuner: Any) -> None:
    """Run an experiment for each trial of a tuner.

    Args:
        experiment_fn: Returns an `Experiment` for (run_config, hparams).
        tuner: Has `next_trial`, `run_experiment`, as the Tuner of contrib.learn.
    """
    while tuner.next_trial():
        tuner.run_experiment(experiment_fn)


__all__ = ["RunConfig", "run", "tune"]
