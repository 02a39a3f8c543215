"""What a program does with its estimator is found without training it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib.learn.experiment import Experiment
from phalanx.compat.tf1.contrib.learn.export_strategy import make_export_strategy
from phalanx.compat.tf1.estimator import (
    Estimator,
    EvalSpec,
    LatestExporter,
    TrainSpec,
    export,
    train_and_evaluate,
)
from phalanx.compat.tf1.loader import LoadedEstimator
from phalanx.compat.tf1.search import Found, SearchEnded, searching
from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.metrics_log import read_evaluations

Input = Callable[[], Any]
MakeEstimator = Callable[..., Estimator]


def receive() -> Any:
    x = tf.placeholder(tf.float32, [None, 3])
    return export.ServingInputReceiver({"x": x}, {"served": x})


def list_inputs(path: str) -> list[str]:
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, [tf.saved_model.SERVING], path)
        return sorted(loaded.signature_def["serving_default"].inputs)


def check_found(found: Found, checkpoint: str, directory: Path) -> None:
    """Evaluate a checkpoint as the program does, and export it with the program's signature."""
    loaded = LoadedEstimator("train.py", found)
    assert loaded.evaluate(checkpoint)["error"] > 0
    assert list_inputs(loaded.export(str(directory / "out"), checkpoint)) == ["served"]


@pytest.fixture
def checkpoint(make_estimator: MakeEstimator, train_input: Input) -> str:
    path = make_estimator().train(train_input, max_steps=20).latest_checkpoint()
    assert path is not None
    return path


def test_separate_calls(
    make_estimator: MakeEstimator,
    train_input: Input,
    eval_input: Input,
    checkpoint: str,
    tmp_path: Path,
) -> None:
    estimator = make_estimator()
    with searching() as found:
        assert estimator.train(train_input, max_steps=500) is estimator
        assert estimator.evaluate(eval_input)["any metric"] == 0
        assert list(estimator.predict(eval_input)) == []
    assert estimator.latest_checkpoint() == checkpoint
    loaded = LoadedEstimator("train.py", found)
    assert set(loaded.evaluate(checkpoint)) == {"error", "loss"}
    assert [each.step for each in read_evaluations(estimator.model_dir)] == [20]
    # Without an exporter, requests have the features of the input_fn.
    assert list_inputs(loaded.export(str(tmp_path / "out"), checkpoint)) == ["x"]


def test_train_and_evaluate_ends_the_program(
    make_estimator: MakeEstimator,
    train_input: Input,
    eval_input: Input,
    checkpoint: str,
    tmp_path: Path,
) -> None:
    estimator = make_estimator()
    spec = EvalSpec(eval_input, name="test", exporters=LatestExporter("latest", receive))
    with searching() as found, pytest.raises(SearchEnded):
        train_and_evaluate(estimator, TrainSpec(train_input), spec)
    check_found(found, checkpoint, tmp_path)


def test_experiment_ends_the_program(
    make_estimator: MakeEstimator,
    train_input: Input,
    eval_input: Input,
    checkpoint: str,
    tmp_path: Path,
) -> None:
    strategies = [make_export_strategy(receive)]
    with searching() as found, pytest.raises(SearchEnded):
        Experiment(make_estimator(), train_input, eval_input, export_strategies=strategies)
    check_found(found, checkpoint, tmp_path)


def test_program_that_only_trains_cannot_be_evaluated(
    make_estimator: MakeEstimator,
    train_input: Input,
) -> None:
    with searching() as found:
        make_estimator().train(train_input)
    with pytest.raises(ConfigurationError, match=r"train\.py evaluates nothing: let it call"):
        LoadedEstimator("train.py", found).evaluate("model.ckpt-1")
