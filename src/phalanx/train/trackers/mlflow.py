"""MLflow, as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.train.trackers.base import Parameters, missing_library

_LONGEST_VALUE = 500


class MLflow:
    """A run of MLflow.

    Args:
        experiment: The experiment; by default that of MLFLOW_EXPERIMENT_NAME, or `phalanx`.
    """

    name = "mlflow"

    def __init__(self, experiment: str | None = None) -> None:
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "phalanx"
        self._client: Any = None
        self._run_id = ""

    def open(self, run_id: str | None, run_name: str, parameters: Parameters) -> str:
        try:
            from mlflow.exceptions import MlflowException  # noqa: PLC0415
            from mlflow.tracking import MlflowClient  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise missing_library(self.name, error) from None
        self._client = client = MlflowClient()
        if run_id is None:
            found = client.get_experiment_by_name(self._experiment)
            number = (
                client.create_experiment(self._experiment) if found is None else found.experiment_id
            )
            run_id = client.create_run(number, run_name=run_name).info.run_id
        else:
            client.update_run(run_id, status="RUNNING")
        self._run_id = str(run_id)
        for name, value in parameters.items():
            try:
                client.log_param(self._run_id, name, str(value)[:_LONGEST_VALUE])
            except MlflowException:
                # A parameter cannot be changed; a run that goes on may have other ones.
                client.set_tag(self._run_id, f"resumed.{name}", str(value)[:_LONGEST_VALUE])
        return self._run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415

        now = int(time.time() * 1000)
        metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def add_artifact(self, path: Path) -> None:
        if path.is_dir():
            self._client.log_artifacts(self._run_id, str(path), path.name)
        else:
            self._client.log_artifact(self._run_id, str(path))

    def close(self, succeeded: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if succeeded else "FAILED")
