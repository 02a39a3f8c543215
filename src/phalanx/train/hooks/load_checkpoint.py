"""Begin with weights that were trained before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from phalanx.train.hooks.base import Hook
from phalanx.train.model_dir.warm_start import warm_start

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class LoadCheckpoint(Hook):
    """Warm start: takes weights from another checkpoint, once, when a run begins anew.

        LoadCheckpoint("runs/old")                           everything, from the last checkpoint
        LoadCheckpoint("old.keras", prefix="encoder/")       only the weights whose names begin so
        LoadCheckpoint("tf1/model.ckpt-9", names={"dense/kernel": "fc1/weights"})

    `names` leads from the model's names to the checkpoint's; if both end with `/`, they stand for
    all names that begin so. Reads our checkpoints, those of TensorFlow 1 and 2, `.keras` and
    `.weights.h5` files. A weight that is missing, or has another shape, is an error that names it.
    A run that goes on from a checkpoint of its own keeps that one.
    """

    def __init__(
        self, path: str, *, prefix: str = "", names: Mapping[str, str] | None = None
    ) -> None:
        self.path = str(path)
        self.prefix = prefix
        self.names = names

    def on_restore(self, session: Session) -> None:
        """Load, unless the run has weights of its own."""
        if not session.is_restored:
            warm_start(session.variables, session.model, self.path, self.prefix, self.names)
