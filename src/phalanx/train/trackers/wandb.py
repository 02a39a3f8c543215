"""Weights & Biases, as WANDB_PROJECT, WANDB_MODE and its other variables say."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.train.trackers.base import Parameters, missing_library


class Wandb:
    """A run of Weights & Biases.

    Args:
        project: The project; by default that of WANDB_PROJECT, or `phalanx`.
    """

    name = "wandb"

    def __init__(self, project: str | None = None) -> None:
        self._project = project or os.environ.get("WANDB_PROJECT") or "phalanx"
        self._run: Any = None

    def open(self, run_id: str | None, run_name: str, parameters: Parameters) -> str:
        try:
            import wandb  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise missing_library(self.name, error) from None
        self._run = wandb.init(
            project=self._project,
            id=run_id,
            name=run_name,
            config=dict(parameters),
            resume="allow" if run_id else None,
            dir=os.environ.get("WANDB_DIR") or parameters.get("model_dir"),
        )
        # A run that goes on from a checkpoint repeats steps, which its own counter cannot.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def add_artifact(self, path: Path) -> None:
        import wandb  # noqa: PLC0415

        artifact = wandb.Artifact(
            f"{self._run.id}-{path.stem}", "model" if path.is_dir() else "plot"
        )
        if path.is_dir():
            artifact.add_dir(str(path))
        else:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)
