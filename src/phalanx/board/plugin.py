"""A plugin of TensorBoard that shows the task files of all runs below its log directory.

TensorBoard finds it by its entry point, wherever Phalanx is installed. It only reads files, and
needs no TensorFlow.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from phalanx.train.model_dir.layout import TASK_FOLDER
from phalanx.train.model_dir.metrics_log import read_evaluations
from phalanx.train.model_dir.task_files import (
    SILENT_SECONDS,
    TaskEvent,
    TaskReport,
    read_task_files,
)

_PAGE = Path(__file__).with_name("page.js")
# Directories are walked at most this deep, so that a large tree does not block TensorBoard.
_MAX_DEPTH = 6
_MAX_EVALUATIONS = 100
_STRAGGLER_FACTOR = 2.0

Application = Callable[..., Iterable[bytes]]


class ClusterPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """Serves the page, and what the runs report as JSON."""

    plugin_name = "phalanx_cluster"

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._logdir = Path(context.logdir or ".")

    def get_plugin_apps(self) -> dict[str, Application]:
        serve = wrappers.Request.application
        return {
            "/page.js": serve(self._serve_page),
            "/runs": serve(self._serve_runs),
            "/run": serve(self._serve_run),
        }

    def is_active(self) -> bool:
        return next(find_clusters(self._logdir), None) is not None

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path="/page.js", tab_name="Cluster")

    def _serve_page(self, request: wrappers.Request) -> wrappers.Response:
        return wrappers.Response(_PAGE.read_bytes(), content_type="text/javascript")

    def _serve_runs(self, request: wrappers.Request) -> wrappers.Response:
        names = [str(path.relative_to(self._logdir)) for path in find_clusters(self._logdir)]
        return _respond(sorted(names))

    def _serve_run(self, request: wrappers.Request) -> wrappers.Response:
        """Serve one of the runs that were found; a name that is not among them finds nothing."""
        name = request.args.get("run", "")
        for path in find_clusters(self._logdir):
            if str(path.relative_to(self._logdir)) == name:
                return _respond(describe_run(path, time.time()))
        return _respond({"error": f"there is no run {name!r}"}, status=404)


def find_clusters(directory: Path) -> Iterator[Path]:
    """Yield the directories of runs with task files, this one or below it."""
    for folder, inner, _ in os.walk(directory):
        path = Path(folder)
        if TASK_FOLDER in inner and next((path / TASK_FOLDER).glob("*.json"), None):
            yield path
        inner.sort()
        if len(path.relative_to(directory).parts) >= _MAX_DEPTH:
            inner.clear()


def describe_run(path: Path, now: float) -> dict[str, Any]:
    """Return what the page shows of a run, as plain data."""
    reports = read_task_files(path)
    tasks = [_describe_task(report, now) for report in reports]
    for report in reports:
        _add_what_it_knows(tasks, report)
    slow = _find_stragglers({each["task"]: each["parts"] for each in tasks})
    slow = slow.union(*(report.stragglers for report in reports))
    for task in tasks:
        task["straggler"] = task["task"] in slow
        if parts := task["parts"]:
            task["seconds_per_step"] = sum(parts.values())
    if not any(event.kind == "evaluated" for report in reports for event in report.events):
        _add_evaluations(tasks, path)
    return {"now": now, "tasks": tasks}


def _add_what_it_knows(tasks: list[dict[str, Any]], report: TaskReport) -> None:
    """Add what a task, the chief, reports of the others."""
    for task in tasks:
        name = task["task"]
        if task["step"] is None:
            task["step"] = report.trainer_steps.get(name)
        task["parts"] = task["parts"] or report.trainer_parts.get(name, {})
        task["variable_bytes"] = report.variable_bytes.get(name, task["variable_bytes"])


def _add_evaluations(tasks: list[dict[str, Any]], path: Path) -> None:
    """Add what an evaluator, or `phalanx evaluate`, has written to the events."""
    by_name = {task["task"]: task for task in tasks}
    leader = next((task for task in tasks if task["leads"]), None)
    target = by_name.get("evaluator-0", leader)
    if target is not None:
        for entry in read_evaluations(str(path))[-_MAX_EVALUATIONS:]:
            text = ", ".join(f"{name} {value:.4g}" for name, value in entry.values.items())
            target["events"].append(asdict(TaskEvent(entry.time, "evaluated", text, entry.step)))


def _describe_task(report: TaskReport, now: float) -> dict[str, Any]:
    described = asdict(report)
    silent = now - report.time
    if report.state == "running" and silent > SILENT_SECONDS:
        described["state"] = "silent"
        described["reason"] = f"no sign of life for {silent:.0f} s: killed, or its host is gone"
    described["variable_bytes"] = None
    return described


def _find_stragglers(parts: dict[str, Mapping[str, float]]) -> set[str]:
    """Return the trainers that are busy with a step for twice as long as the median of the others.

    >>> parts = {"chief-0": {"computing": 1.0}, "worker-0": {"computing": 1.1, "other": 9.0}}
    >>> _find_stragglers({**parts, "worker-1": {"computing": 1.0, "waiting for data": 1.2}})
    {'worker-1'}
    """
    busy = {
        name: each["computing"] + each.get("waiting for data", 0.0)
        for name, each in parts.items()
        if "computing" in each
    }
    slow = set()
    for name, seconds in busy.items():
        others = [busy[other] for other in busy if other != name]
        if others and seconds > _STRAGGLER_FACTOR * median(others):
            slow.add(name)
    return slow


def _respond(content: object, status: int = 200) -> wrappers.Response:
    return wrappers.Response(json.dumps(content), status=status, content_type="application/json")
