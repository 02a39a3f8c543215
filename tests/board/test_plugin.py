"""The Cluster page of TensorBoard: what it reads, and what it serves."""

import json
from pathlib import Path

import pytest
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.test import Client

from phalanx.board.plugin import ClusterPlugin, describe_run, find_clusters
from phalanx.train.model_dir.task_files import TaskReport, read_task_file


def write(directory: Path, report: TaskReport) -> None:
    (directory / "cluster").mkdir(parents=True, exist_ok=True)
    path = directory / "cluster" / f"{report.task}.json"
    path.write_text(json.dumps(vars(report)))
    assert read_task_file(path) == report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "runs" / "a"
    steps = {"chief-0": 90, "worker-0": 100, "worker-1": 20}
    chief = TaskReport(
        "chief-0", time=100.0, leads=True, step=210, trainer_steps=steps,
        parts={"computing": 1.0, "saving": 0.5},
        trainer_parts={"worker-0": {"computing": 1.5}, "worker-1": {"computing": 4.0}},
        variable_bytes={"ps-0": 8},
    )  # fmt: skip
    write(directory, chief)
    for task, written in (("worker-0", 99.0), ("worker-1", 50.0), ("ps-0", 99.0)):
        write(directory, TaskReport(task, time=written))
    return directory


def test_silent_tasks_stragglers_and_bytes_of_parameter_servers_are_found(run: Path) -> None:
    tasks = {task["task"]: task for task in describe_run(run, now=101.0)["tasks"]}
    assert list(tasks) == ["chief-0", "worker-0", "worker-1", "ps-0"]
    assert [task["state"] for task in tasks.values()] == ["running", "running", "silent", "running"]
    assert [name for name, task in tasks.items() if task["straggler"]] == ["worker-1"]
    assert tasks["worker-1"]["step"] == 20
    assert tasks["ps-0"]["variable_bytes"] == 8
    assert tasks["worker-0"]["parts"] == {"computing": 1.5}
    assert [task["seconds_per_step"] for task in tasks.values()] == [1.5, 1.5, 4.0, None]


def test_trainers_that_the_chief_calls_stragglers_are_marked(run: Path) -> None:
    write(run, TaskReport("chief-0", time=100.0, leads=True, stragglers=["worker-0"]))
    found = {task["task"]: task["straggler"] for task in describe_run(run, now=101.0)["tasks"]}
    assert found == {"chief-0": False, "worker-0": True, "worker-1": False, "ps-0": False}


def test_evaluations_of_an_evaluator_are_events(run: Path) -> None:
    write(run, TaskReport("evaluator-0", time=99.0))
    (run / "eval").mkdir()
    (run / "eval/eval.jsonl").write_text('{"step": 100, "time": 98.0, "accuracy": 0.5}\n')
    [event] = describe_run(run, now=101.0)["tasks"][-1]["events"]
    assert (event["kind"], event["step"], event["text"]) == ("evaluated", 100, "accuracy 0.5")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"task": 1, "events": [7]}', '{"step": 1}'])
def test_damaged_task_files_are_passed_over(run: Path, text: str) -> None:
    (run / "cluster/worker-0.json").write_text(text)
    (run / "cluster/notes.json").write_text('{"task": "notes"}')
    names = [task["task"] for task in describe_run(run, now=101.0)["tasks"]]
    assert names == ["chief-0", "worker-1", "ps-0", "notes"]


def test_plugin_serves_only_runs_below_its_log_directory(run: Path) -> None:
    write(run.parents[1] / "private", TaskReport("chief-0"))
    plugin = ClusterPlugin(TBContext(logdir=str(run.parent)))
    assert plugin.is_active()
    apps = {path: Client(app) for path, app in plugin.get_plugin_apps().items()}
    assert apps["/runs"].get("/runs").json == ["a"]
    found = json.loads(apps["/run"].get("/run?run=a").text)
    assert found["tasks"][0]["task"] == "chief-0"
    assert apps["/run"].get("/run?run=../private").status_code == 404
    page = apps["/page.js"].get("/page.js")
    assert page.content_type.startswith("text/javascript")
    assert "innerHTML" not in page.text


def test_plugin_is_inactive_without_task_files(tmp_path: Path) -> None:
    assert not ClusterPlugin(TBContext(logdir=str(tmp_path))).is_active()
    assert list(find_clusters(tmp_path)) == []
