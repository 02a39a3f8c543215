"""A job in trackers of experiments: the real libraries, with files instead of servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.train.small_experiment import Line

import phalanx
from phalanx import hooks
from phalanx.errors import ConfigurationError
from phalanx.train.hooks.entry_points import load_hooks
from phalanx.train.trackers.base import collect_parameters


class Memory:
    """A tracker that remembers what it is told."""

    name = "memory"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def open(self, run_id: str | None, run_name: str, parameters: Any) -> str:
        self.calls.append(("open", run_id, run_name, dict(parameters)))
        return run_id or "run-1"

    def log(self, step: int, values: Any) -> None:
        self.calls.append(("log", step, dict(values)))

    def add_artifact(self, path: Path) -> None:
        self.calls.append(("artifact", path.name))

    def close(self, succeeded: bool) -> None:
        self.calls.append(("close", succeeded))


def make_config(folder: Path, **settings: Any) -> phalanx.RunConfig:
    return phalanx.RunConfig(
        model_dir=str(folder / "line"), train_steps=20, summary_steps=10, seed=7
    ).replace(**settings)


def test_job_is_one_run_which_a_restart_continues(tmp_path: Path) -> None:
    first, config = Memory(), make_config(tmp_path)
    (tmp_path / "line/export/1").mkdir(parents=True)
    (tmp_path / "line/curves.png").touch()
    phalanx.run(Line(), config, hooks=[hooks.TrackerHook(first, config)])
    kind, run_id, name, parameters = first.calls[0]
    assert (kind, run_id, name) == ("open", None, "line")
    assert (parameters["train_steps"], parameters["seed"]) == (20, 7)
    logged = [call[1:] for call in first.calls if call[0] == "log"]
    assert [step for step, values in logged if "train/loss" in values] == [10, 20]
    assert [step for step, values in logged if "eval/mae" in values] == [20]
    assert all(values["learning_rate"] > 0 for _, values in logged if "train/loss" in values)
    assert first.calls[-3:] == [("artifact", "export"), ("artifact", "curves.png"), ("close", True)]

    second, longer = Memory(), config.replace(train_steps=30)
    phalanx.run(Line(), longer, hooks=[hooks.TrackerHook(second, longer)])
    assert second.calls[0][1] == "run-1"
    assert [call[1] for call in second.calls if call[0] == "log"] == [30, 30]


def test_failure_of_a_tracker_does_not_end_the_run(tmp_path: Path, caplog: Any) -> None:
    class Broken(Memory):
        def log(self, step: int, values: Any) -> None:
            raise OSError("no route to host")

    config, tracker = make_config(tmp_path), Broken()
    assert phalanx.run(Line(), config, hooks=[hooks.TrackerHook(tracker, config)]).step == 20
    assert caplog.text.count("no route to host") == 1
    assert tracker.calls[-1] == ("close", True)


def test_flags_of_the_program_are_parameters_except_secrets() -> None:
    argv = ["--layers=20", "--rate", "0.1", "--fast", "--api-key", "xyz", "--train-steps", "9"]
    found = collect_parameters(phalanx.RunConfig(), argv)
    assert (found["layers"], found["rate"], found["fast"]) == ("20", "0.1", "true")
    assert "xyz" not in found.values()
    assert found.get("train_steps") is None


def test_trackers_are_hooks_with_names() -> None:
    config = phalanx.RunConfig(hooks="mlflow,wandb,hparams")
    assert [type(each).__name__ for each in load_hooks(config)] == [
        "MLflowHook",
        "WandbHook",
        "HParamsHook",
    ]
    with pytest.raises(ConfigurationError, match=r"no hook 'comet' \(.*mlflow"):
        load_hooks(phalanx.RunConfig(hooks="comet"))


@pytest.mark.slow
def test_mlflow_has_one_run_with_parameters_metrics_and_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="pip install 'phalanx[mlflow]'")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = make_config(tmp_path)
    (tmp_path / "line/export/1").mkdir(parents=True)
    (tmp_path / "line/export/1/saved_model.pb").write_text("model")
    for steps in (20, 30):
        changed = config.replace(train_steps=steps)
        phalanx.run(Line(), changed, hooks=[hooks.MLflowHook(changed, "tests")])
    client = MlflowClient()
    experiment = client.get_experiment_by_name("tests")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "line"
    assert (run.data.params["seed"], run.data.tags["resumed.train_steps"]) == ("7", "30")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [each.step for each in history] == [10, 20, 30]
    assert run.data.metrics["eval/mae"] > 0
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["export"]


@pytest.mark.slow
def test_wandb_has_one_run_in_offline_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'phalanx[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = make_config(tmp_path)
    for steps in (20, 30):
        changed = config.replace(train_steps=steps)
        phalanx.run(Line(), changed, hooks=[hooks.WandbHook(changed, "tests")])
    run_id = json.loads((tmp_path / "line/trackers.json").read_text())["wandb"]
    files = sorted((tmp_path / "line/wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
    # Offline, each process has a file; they are synchronized into the run of this ID.
    assert len(files) == 2
    assert b"train/loss" in files[0].read_bytes()
    assert b"eval/mae" in files[1].read_bytes()


def test_hparams_are_where_tensorboard_finds_them(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.plugins.hparams import plugin_data_pb2

    config = make_config(tmp_path)
    phalanx.run(Line(), config, hooks=[hooks.HParamsHook(config)])
    found: dict[str, Any] = {}
    for path in (tmp_path / "line").glob("events.out.tfevents*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    data = plugin_data_pb2.HParamsPluginData.FromString(
                        value.metadata.plugin_data.content
                    )
                    found[str(data.WhichOneof("data"))] = data
    assert set(found) == {"session_start_info", "session_end_info"}
    start = found["session_start_info"].session_start_info
    assert start.hparams["train_steps"].number_value == 20
    assert found["session_end_info"].session_end_info.status == 1
