"""tf.contrib.learn: Experiment, learn_runner and the older Estimator, in one process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tests.compat.tf1.estimator.conftest import model_fn

from phalanx.compat.tf1.contrib import learn
from phalanx.compat.tf1.contrib.learn import learn_runner
from phalanx.compat.tf1.contrib.training import HParams
from phalanx.compat.tf1.estimator import Estimator
from phalanx.errors import ConfigurationError

Input = Callable[[], Any]
MakeEstimator = Callable[..., Estimator]


def receive() -> learn.InputFnOps:
    x = tf.placeholder(tf.float32, [None, 3])
    return learn.InputFnOps({"x": x}, None, {"x": x})


@pytest.fixture
def make_experiment(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input
) -> Callable[..., learn.Experiment]:
    def make(**settings: Any) -> learn.Experiment:
        arguments = {"train_steps": 60, "eval_steps": None, "eval_delay_secs": 0, **settings}
        return learn.Experiment(make_estimator(), train_input, eval_input, **arguments)

    return make


MakeExperiment = Callable[..., learn.Experiment]


class Count(tf.train.SessionRunHook):  # type: ignore[misc]
    """Counts sessions."""

    def __init__(self) -> None:
        self.sessions = 0

    def begin(self) -> None:
        self.sessions += 1


def test_train_and_evaluate_evaluates_in_between_and_exports(
    make_experiment: MakeExperiment,
) -> None:
    trained, evaluated = Count(), Count()
    strategy = learn.utils.make_export_strategy(receive, exports_to_keep=1)
    experiment = make_experiment(eval_hooks=[evaluated], export_strategies=strategy)
    experiment.extend_train_hooks([trained])
    metrics, exports = experiment.train_and_evaluate()
    assert metrics is not None
    assert metrics["global_step"] == 60
    assert metrics["error"] < 0.1
    assert trained.sessions == 1
    # At steps 20, 40 and 60.
    assert evaluated.sessions == 3
    assert Path(exports[0].decode()).parent.name == "Servo"
    assert experiment.reset_export_strategies() == (strategy,)


def test_rounds_of_training_and_evaluation(make_experiment: MakeExperiment) -> None:
    seen: list[int] = []

    def goes_on(metrics: Any) -> bool:
        seen.append(0 if metrics is None else int(metrics["global_step"]))
        return len(seen) < 3

    experiment = make_experiment(train_steps_per_iteration=10)
    metrics, _ = experiment.continuous_train_and_eval(goes_on)
    assert metrics is not None
    assert seen == [0, 10, 20]


def test_continuous_evaluation_outlives_a_deleted_checkpoint(
    make_experiment: MakeExperiment,
) -> None:
    make_experiment(train_steps=40).train()

    class Delete(tf.train.SessionRunHook):  # type: ignore[misc]
        """Deletes the checkpoint that is restored, once."""

        def begin(self) -> None:
            directory = Path(experiment.estimator.model_dir)
            if not (directory / "model.ckpt-60.index").exists():
                make_experiment().train()
                for file in directory.glob("model.ckpt-40.*"):
                    file.unlink()

    experiment = make_experiment(eval_hooks=[Delete()])
    experiment.continuous_eval(name="late")
    [events] = Path(experiment.estimator.eval_dir("late")).glob("events*")
    steps = {event.step for event in tf.train.summary_iterator(str(events))}
    assert steps - {0} == {60}


def test_single_parts_of_an_experiment(make_experiment: MakeExperiment) -> None:
    metrics, exports = make_experiment().test()
    assert metrics["global_step"] == 1
    assert exports == []
    experiment = make_experiment()
    assert experiment.train() is experiment.estimator
    found = experiment.evaluate(name="again")
    assert found is not None
    assert found["global_step"] == 60
    # The run is over, so that this ends after the last checkpoint.
    experiment.continuous_eval(name="late")
    assert list(Path(experiment.estimator.eval_dir("late")).glob("events*"))
    with pytest.raises(ValueError, match="run_std_server was called on a task 'worker'"):
        experiment.run_std_server()


@pytest.mark.parametrize(
    ("task", "asked", "chosen"),
    [
        ("master", None, "train_and_evaluate"),
        ("worker", None, "train"),
        ("worker", "train_and_evaluate", "train_and_evaluate"),
        ("ps", None, "run_std_server"),
        ("ps", "train_and_evaluate", "run_std_server"),
    ],
)
def test_ps_serves_although_the_program_names_a_schedule(
    task: str, asked: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"master": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    text = json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}})
    monkeypatch.setenv("TF_CONFIG", text)
    assert learn_runner.choose_schedule(learn.RunConfig(), asked) == chosen


def test_runner_calls_experiment_functions_of_each_form(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    config = learn.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=20)
    params = HParams(rate=0.2)
    seen: list[Any] = []

    def by_name(run_config: Any, hparams: Any) -> learn.Experiment:
        seen.append((run_config.model_dir, hparams))
        return make_experiment(train_steps=5)

    metrics, _ = learn_runner.run(by_name, run_config=config, hparams=params)
    assert metrics["global_step"] == 5
    assert seen == [(str(tmp_path), params)]
    run = learn_runner.run(lambda output_dir: make_experiment(), output_dir="x", schedule="test")
    assert run[0]["global_step"] == 6
    assert learn_runner.run(lambda config, other: make_experiment(), run_config=config)


def test_tuner_runs_an_experiment_for_each_trial(make_experiment: MakeExperiment) -> None:
    class Tuner:
        """Tries two learning rates."""

        def __init__(self) -> None:
            self.rates = [0.1, 0.2]
            self.results: list[Any] = []

        def next_trial(self) -> bool:
            return len(self.results) < len(self.rates)

        def run_experiment(self, experiment_fn: Any) -> None:
            hparams = HParams(rate=self.rates[len(self.results)])
            experiment = experiment_fn(learn.RunConfig(), hparams)
            self.results.append((hparams.rate, experiment.test()[0]["global_step"]))

    tuner = Tuner()
    learn_runner.tune(lambda run_config, hparams: make_experiment(), tuner)
    # The second trial continues in the same directory.
    assert tuner.results == [(0.1, 1), (0.2, 2)]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "set run_config, or output_dir"),
        ({"run_config": learn.RunConfig()}, "the run_config has no model_dir"),
        ({"output_dir": "x", "schedule": "fly"}, "an experiment has no schedule 'fly'"),
        ({"output_dir": "x", "schedule": "_train"}, "an experiment has no schedule '_train'"),
        ({"output_dir": "x", "hparams": HParams()}, "hparams need a run_config"),
    ],
)
def test_wrong_calls_of_the_runner_are_described(
    make_experiment: MakeExperiment, settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        learn_runner.run(lambda output_dir: make_experiment(), **settings)


def test_experiment_function_must_return_an_experiment() -> None:
    with pytest.raises(TypeError, match="the experiment_fn returned a NoneType"):
        learn_runner.run(lambda output_dir: None, output_dir="x")  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="the estimator is a str"):
        learn.Experiment("estimator", list, list)  # type: ignore[arg-type]


def test_older_estimator_takes_what_model_functions_returned(
    tmp_path: Path, train_input: Input, eval_input: Input
) -> None:
    def old_model_fn(x: Any, y: Any, mode: str, params: Any) -> Any:
        spec = model_fn(x, y, learn.ModeKeys.TRAIN, params)
        weights = tf.global_variables()[1]
        return {"y": tf.matmul(x["x"], weights)}, spec.loss, spec.train_op

    model = learn.Estimator(old_model_fn, tmp_path, params={"rate": 0.2})
    model.fit(input_fn=train_input, steps=60)
    rms = learn.MetricSpec(tf.metrics.root_mean_squared_error, prediction_key="y")
    metrics = model.evaluate(eval_input, metrics={"rms": rms})
    assert metrics["loss"] < 0.01
    # The predictions of this function lack the bias.
    assert metrics["rms"] == pytest.approx(0.5, abs=0.05)
    with pytest.raises(ConfigurationError, match="takes an input_fn, not x, y"):
        model.fit(x=np.ones(3), y=np.ones(3))
