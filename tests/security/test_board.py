"""The Cluster page of TensorBoard, with task files that somebody else has written."""

import json
import os
from pathlib import Path

import pytest
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.test import Client

from phalanx.board.plugin import ClusterPlugin

CHIEF = {"task": "chief-0", "time": 1.0, "leads": True, "loss": 1.0, "step": 7}


def load_run(directory: Path) -> list[dict[str, object]]:
    """Return the tasks that the page gets, as strictly as a browser parses them."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    application = ClusterPlugin(TBContext(logdir=str(directory))).get_plugin_apps()["/run"]
    response = Client(application).get("/?run=.")
    assert response.status_code == 200
    tasks: list[dict[str, object]] = json.loads(response.text, parse_constant=refuse)["tasks"]
    return tasks


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/chief-0.json").write_text(json.dumps(CHIEF))
    return tmp_path / "cluster"


def test_a_loss_that_is_no_number_is_left_out(tasks: Path) -> None:
    (tasks / "chief-0.json").write_text(json.dumps({**CHIEF, "loss": float("nan")}))
    [chief] = load_run(tasks.parent)
    assert (chief["task"], chief["step"], chief["loss"]) == ("chief-0", 7, None)


@pytest.mark.parametrize(
    "values",
    [
        {"time": "now"},
        {"time": float("inf")},
        {"task": ["worker-0"]},
        {"trainer_steps": [1]},
        {"trainer_steps": {"worker-0": "many"}},
        {"variable_bytes": 5},
        {"log": 5},
        {"log": "text"},
        {"loss": 10**4000},
        {"events": [{"time": "now", "kind": "done"}]},
        {"events": [{"time": 1, "kind": {}}]},
    ],
    ids=range(11),
)
def test_values_of_other_types_do_not_hide_the_other_tasks(
    tasks: Path, values: dict[str, object]
) -> None:
    (tasks / "worker-0.json").write_text(json.dumps({"task": "worker-0", **values}))
    assert [task["task"] for task in load_run(tasks.parent)] == ["chief-0"]


def test_pipes_and_large_files_are_passed_over(tasks: Path) -> None:
    os.mkfifo(tasks / "worker-0.json")
    with (tasks / "worker-1.json").open("w") as file:
        file.truncate(1 << 40)
    assert [task["task"] for task in load_run(tasks.parent)] == ["chief-0"]
