"""train_and_evaluate in one process, its exporters, and the evaluator."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tests.compat.tf1.estimator.conftest import model_fn

from phalanx.compat.tf1.estimator import (
    BestExporter,
    Estimator,
    EvalSpec,
    FinalExporter,
    LatestExporter,
    RunConfig,
    TrainSpec,
    export,
    train_and_evaluate,
)
from phalanx.train.model_dir.metrics_log import read_evaluations
from phalanx.train.model_dir.status import State, Status, read_status, write_status

Input = Callable[[], Any]
MakeEstimator = Callable[..., Estimator]


def receive() -> Any:
    x = tf.placeholder(tf.float32, [None, 3])
    return export.ServingInputReceiver({"x": x}, {"x": x})


def exports(estimator: Estimator, name: str) -> int:
    return len(list(Path(estimator.model_dir, "export", name).glob("[0-9]*")))


def exported_steps(estimator: Estimator, name: str) -> list[int]:
    directories = sorted(Path(estimator.model_dir, "export", name).glob("[0-9]*"))
    return [
        int(tf.train.load_variable(str(each / "variables/variables"), "global_step"))
        for each in directories
    ]


def test_checkpoints_are_evaluated_and_exported_while_training(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input
) -> None:
    estimator = make_estimator()
    exporters = [
        FinalExporter("final", receive),
        LatestExporter("latest", receive, exports_to_keep=2),
        BestExporter("best", receive),
    ]
    result = train_and_evaluate(
        estimator,
        TrainSpec(train_input, max_steps=80),
        EvalSpec(eval_input, steps=None, exporters=exporters, throttle_secs=0),
    )
    assert result is not None
    metrics, paths = result
    assert metrics is not None
    assert metrics["global_step"] == 80
    assert metrics["loss"] < 1e-3
    assert exports(estimator, "final") == 1
    # The checkpoints of steps 60 and 80: that of step 80 is exported once.
    assert exported_steps(estimator, "latest") == [60, 80]
    # The last two evaluations may be equal to the last bit.
    assert exported_steps(estimator, "best") in ([20, 40, 60], [20, 40, 60, 80])
    assert None not in paths[:2]
    status = read_status(estimator.model_dir)
    assert status is not None
    assert (status.state, status.step) == (State.DONE, 80)


def test_best_exporter_remembers_the_evaluations_before_a_restart(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input
) -> None:
    # So few steps that rounding decides nothing.
    make_estimator().train(train_input, max_steps=10)
    make_estimator().evaluate(eval_input)
    worse = make_estimator(rate=1.5)
    spec = EvalSpec(eval_input, steps=None, exporters=BestExporter("best", receive))
    train_and_evaluate(worse, TrainSpec(train_input, max_steps=15), spec)
    assert exports(worse, "best") == 0


def test_evaluator_ends_when_the_chief_is_done(
    make_estimator: MakeEstimator,
    train_input: Input,
    eval_input: Input,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = make_estimator()
    trained.train(train_input, max_steps=40)
    cluster = {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1"]}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    evaluator = make_estimator()
    done = Status(State.DONE, 40)
    threading.Timer(1, write_status, [trained.model_dir, done]).start()
    spec = EvalSpec(eval_input, start_delay_secs=3600, exporters=FinalExporter("final", receive))
    assert train_and_evaluate(evaluator, TrainSpec(train_input), spec) is None
    assert exports(evaluator, "final") == 1
    assert list(Path(evaluator.eval_dir()).glob("events*"))
    with pytest.raises(ValueError, match="train was called on a task 'evaluator'"):
        evaluator.train(train_input)


def test_evaluator_goes_on_when_the_checkpoint_that_it_exports_is_deleted(
    make_estimator: MakeEstimator,
    train_input: Input,
    eval_input: Input,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = make_estimator()
    trained.train(train_input, max_steps=40)

    class Training(LatestExporter):
        """Trains on while step 40 is exported, until its checkpoint is deleted."""

        def export(self, estimator: Any, export_path: Any, checkpoint_path: Any, *rest: Any) -> Any:
            if checkpoint_path.endswith("-40"):
                trained.train(train_input, max_steps=60)
                for file in Path(trained.model_dir).glob("model.ckpt-40.*"):
                    file.unlink()
            return super().export(estimator, export_path, checkpoint_path, *rest)

    cluster = {"chief": ["c:1"], "worker": ["w:1"], "ps": ["p:1"]}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    evaluator = make_estimator()
    spec = EvalSpec(
        eval_input, start_delay_secs=0, throttle_secs=0, exporters=Training("latest", receive)
    )
    train_and_evaluate(evaluator, TrainSpec(train_input, max_steps=60), spec)
    assert exports(evaluator, "latest") == 1
    assert [entry.step for entry in read_evaluations(evaluator.model_dir)] == [40, 60]


def test_run_that_starts_warm_is_evaluated_and_exported(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input
) -> None:
    make_estimator().train(train_input, max_steps=60)
    exporters = [LatestExporter("latest", receive), BestExporter("best", receive)]
    warm = make_estimator(0.0, "warm", warm_start_from=make_estimator().model_dir)
    result = train_and_evaluate(
        warm,
        TrainSpec(train_input, max_steps=40, hooks=None, saving_listeners=None),
        EvalSpec(eval_input, steps=None, hooks=None, exporters=exporters, throttle_secs=0),
    )
    assert result is not None
    metrics, _ = result
    assert metrics is not None
    assert metrics["global_step"] == 40
    assert metrics["loss"] < 1e-2
    assert exported_steps(warm, "latest") == [20, 40]
    assert exported_steps(warm, "best") == [20]
    # A run that has begun goes on from its own checkpoint, also if the other one is gone.
    again = make_estimator(0.0, "warm", warm_start_from="gone")
    again.train(train_input, max_steps=50)
    assert again.evaluate(eval_input)["loss"] == pytest.approx(metrics["loss"])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"throttle_secs": -1}, "EvalSpec: throttle_secs is -1: it must be at least 0"),
        ({"start_delay_secs": -1}, "EvalSpec: start_delay_secs is -1: it must be at least 0"),
        ({"steps": 0}, "EvalSpec: steps is 0: it must be at least 1"),
        ({"name": 5}, "EvalSpec: name is 5: it must be a string"),
        ({"hooks": ["hook"]}, "'hook' is not a hook"),
    ],
)
def test_wrong_settings_of_an_evaluation_are_rejected(settings: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        EvalSpec(list, **settings)


def test_run_without_checkpoints_cannot_be_evaluated(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input
) -> None:
    config = RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None)
    estimator = Estimator(model_fn, make_estimator().model_dir, config, {"rate": 0.1})
    with pytest.raises(ValueError, match="no checkpoints are saved, so that none can be evaluated"):
        train_and_evaluate(estimator, TrainSpec(train_input, max_steps=5), EvalSpec(eval_input))


def test_wrong_specs_are_rejected(make_estimator: MakeEstimator, eval_input: Input) -> None:
    spec = EvalSpec(eval_input)
    with pytest.raises(TypeError, match="TrainSpec: input_fn is a NoneType: pass a function"):
        TrainSpec(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="TrainSpec: max_steps is 0: it must be at least 1"):
        TrainSpec(eval_input, max_steps=0)
    with pytest.raises(TypeError, match="TrainSpec and an EvalSpec"):
        train_and_evaluate(make_estimator(), spec, spec)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is not an exporter"):
        wrong = EvalSpec(eval_input, exporters=[receive])
    with pytest.raises(TypeError, match="5 is not an exporter"):
        EvalSpec(eval_input, exporters=5)
    with pytest.raises(TypeError, match="BestExporter: serving_input_receiver_fn is 5: pass a fun"):
        BestExporter(serving_input_receiver_fn=5)  # type: ignore[arg-type]
        train_and_evaluate(make_estimator(), TrainSpec(eval_input), wrong)
    with pytest.raises(ValueError, match="every name must occur once"):
        twice = [FinalExporter("a", receive), LatestExporter("a", receive)]
        train_and_evaluate(
            make_estimator(), TrainSpec(eval_input), EvalSpec(eval_input, exporters=twice)
        )


def test_arrays_without_a_dict_are_features(tmp_path: Path) -> None:
    from phalanx.compat.tf1.estimator.inputs import numpy_input_fn, pandas_input_fn

    x, y = np.arange(5, dtype=np.float32), np.array(list("abcde"))
    with tf.Graph().as_default(), tf.Session() as session:
        features, labels = numpy_input_fn(x, y, batch_size=4, num_epochs=2, shuffle=False)()
        session.run(tf.tables_initializer())
        batches = [session.run([features, labels]) for _ in range(3)]
    assert [list(each[0]) for each in batches] == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]
    assert list(batches[0][1]) == [b"a", b"b", b"c", b"d"]
    with pytest.raises(ValueError, match="different lengths"):
        numpy_input_fn({"a": x, "b": x[:2]}, shuffle=False)
    with pytest.raises(ValueError, match="set shuffle"):
        numpy_input_fn(x)
    with pytest.raises(ValueError, match="batch_size is 0"):
        numpy_input_fn(x, batch_size=0, shuffle=False)
    with pytest.raises(ValueError, match=r"the arrays have .* 0} examples"):
        numpy_input_fn(x[:0], num_epochs=None, shuffle=True)
    with pytest.raises(TypeError, match="x is a dict: pass a DataFrame"):
        pandas_input_fn({"x": x}, shuffle=False)
