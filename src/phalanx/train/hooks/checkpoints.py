"""Hooks that save checkpoints, and that start a run from another checkpoint."""

from collections.abc import Mapping

from phalanx.train.hooks.base import Hook, PeriodicHook
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.warm_start import warm_start


class CheckpointHook(PeriodicHook):
    """Saves a checkpoint whenever `when` is due, at step 0, and at the end of the run."""

    def begin(self, session: Session) -> None:
        super().begin(session)
        # An evaluator compares later checkpoints with the untrained model.
        if session.step == 0:
            session.save()

    def act(self, session: Session) -> None:
        session.save()

    def end(self, session: Session) -> None:
        session.save()


class LoadCheckpoint(Hook):
    """Warm start: loads weights from another checkpoint when a run starts at step 0.

        LoadCheckpoint("runs/old")                        # all weights of the last checkpoint
        LoadCheckpoint("old.keras", prefix="encoder/")    # only weights with this prefix
        LoadCheckpoint("tf1/model.ckpt-9", names={"dense/kernel": "fc1/weights"})

    It reads checkpoints of Phalanx and of TensorFlow 1 and 2, and `.keras` and `.weights.h5` files.
    A weight that is missing or has another shape is an error that names the weight. A run that is
    restored from its own checkpoint does not load anything.

    Args:
        path: A checkpoint, a file, or the directory of a run.
        prefix: Load only the weights whose names start with this prefix.
        names: Maps names of the model to names of the checkpoint. If both end with `/`, they map
            all names that start with them.
    """

    def __init__(
        self, path: str, *, prefix: str = "", names: Mapping[str, str] | None = None
    ) -> None:
        self.path = str(path)
        self.prefix = prefix
        self.names = names

    def on_restore(self, session: Session) -> None:
        if not session.is_restored:
            warm_start(session.variables, session.model, self.path, self.prefix, self.names)
