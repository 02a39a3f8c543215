"""Save, restore, and say how the run stands: all that is ever written into model_dir."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, Interrupted
from phalanx.train.loop.session import Position, Reporter
from phalanx.train.variables.host_variables import HostVariables

LOG = logging.getLogger("phalanx")

STATUS_FILE = "status.json"
BEAT_SECONDS = 15.0


class State(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Status:
    """What the chief last said of the run."""

    state: State
    step: int = 0
    reason: str = ""
    time: float = 0.0


class Checkpoints:
    """The checkpoints of a run, in TensorFlow's own format.

    They hold the model under its own names, whatever the cluster it was trained on, so that plain
    TensorFlow reads them too: `tf.train.Checkpoint(model=model).restore(path).expect_partial()`.
    """

    def __init__(
        self,
        directory: str,
        step: Reporter,
        host_variables: HostVariables,
        *,
        keep_max: int = 5,
        keep_every_hours: float = 10_000,
        global_batch_size: int = 1,
    ) -> None:
        self.directory = directory
        self._batch = global_batch_size
        self._beaten = 0.0
        names = ("step", "epoch", "batches", "examples", "batch")
        self._numbers = {name: tf.Variable(0, dtype=tf.int64, trainable=False) for name in names}
        self._step = step
        parts: dict[str, Any] = {"model": _trackable(step), "optimizer": host_variables.optimizer}
        self._model = tf.train.Checkpoint(model=parts["model"])
        self._whole = tf.train.Checkpoint(**parts, **self._numbers)
        # Not part of what must be there: a run may go on with other metrics.
        self._totals = tf.Variable(tf.zeros([0], tf.float64), shape=[None], trainable=False)
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(**parts, **self._numbers, totals=self._totals),
            directory,
            max_to_keep=keep_max,
            keep_checkpoint_every_n_hours=keep_every_hours,
            checkpoint_name="model.ckpt",
        )

    @property
    def latest(self) -> str | None:
        """The path of the last checkpoint that was not deleted."""
        kept = [self._manager.latest_checkpoint, *reversed(self._manager.checkpoints)]
        return next((path for path in kept if path and tf.io.gfile.exists(f"{path}.index")), None)

    def restore(self) -> tuple[int, Position]:
        """Go on from the last checkpoint, if there is one."""
        path = self.latest
        if path is None:
            return 0, Position()
        self.load(path)
        with reading(path, "run"):
            totals = _read_totals(path)
        saved = {name: int(variable.numpy()) for name, variable in self._numbers.items()}
        batches = saved["batches"] * saved["batch"] // max(self._batch, 1)
        LOG.info("restored step %d from %s", saved["step"], path)
        fits = len(totals) == self._step.report_size
        totals = totals if fits else np.zeros([0])
        return saved["step"], Position(saved["epoch"], batches, saved["examples"], totals)

    def load(self, path: str) -> None:
        """Read one checkpoint into the model's own variables."""
        with reading(path, "model or optimizer"):
            fill(self._whole, path)

    def load_model(self, path: str) -> None:
        """Read only the model, as an evaluation needs it."""
        with reading(path, "model"):
            fill(self._model, path)

    def save(self, step: int, position: Position) -> str:
        """Write the model's own variables as they are now."""
        values = {
            "step": step,
            "epoch": position.epoch,
            "batches": position.batches,
            "examples": position.examples,
            "batch": self._batch,
        }
        for name, value in values.items():
            self._numbers[name].assign(value)
        self._totals.assign(position.totals)
        path = str(self._manager.save(checkpoint_number=step))
        LOG.info("saved step %d to %s", step, path)
        write_status(self.directory, Status(State.RUNNING, step))
        return path

    def beat(self, step: int, now: float) -> None:
        """Tell whoever follows the run that it goes on, every quarter of a minute."""
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            write_status(self.directory, Status(State.RUNNING, step))

    def mark_done(self, step: int) -> None:
        """Say that no further checkpoint will come."""
        write_status(self.directory, Status(State.DONE, step))

    def mark_failed(self, error: BaseException) -> None:
        """Say why no further checkpoint will come."""
        state = State.INTERRUPTED if isinstance(error, Interrupted) else State.FAILED
        reason = f"{type(error).__name__}: {error}"
        write_status(self.directory, Status(state, int(self._numbers["step"]), reason))


def fill(checkpoint: Any, path: str) -> None:
    """Every variable must be found; what else is in the file is left."""
    status = checkpoint.restore(path)
    status.assert_existing_objects_matched()
    status.expect_partial()


@contextlib.contextmanager
def reading(path: str, what: str) -> Iterator[None]:
    """A checkpoint of another model, or a damaged one, is said to be that."""
    try:
        yield
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise ConfigurationError(
            f"{path} is a checkpoint of another {what}: {str(error).splitlines()[0]}. Use another "
            "model_dir, or the model that was saved there"
        ) from None
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError, IndexError) as error:
        raise ConfigurationError(
            f"{path} is damaged ({str(error).splitlines()[0]}): delete {path}.* to go on from the "
            "checkpoint before it, or use another model_dir"
        ) from None


def _read_totals(path: str) -> np.ndarray[Any, Any]:
    reader = tf.train.load_checkpoint(path)
    name = "totals/.ATTRIBUTES/VARIABLE_VALUE"
    return np.asarray(reader.get_tensor(name) if reader.has_tensor(name) else [], np.float64)


def write_status(directory: str, status: Status) -> None:
    """Replace the status file in one go."""
    text = json.dumps(
        {
            "state": status.state,
            "step": status.step,
            "reason": status.reason,
            "time": status.time or time.time(),
        }
    )
    path = f"{directory}/{STATUS_FILE}"
    with tf.io.gfile.GFile(path + ".new", "w") as file:
        file.write(text)
    tf.io.gfile.rename(path + ".new", path, overwrite=True)


def read_status(directory: str) -> Status | None:
    """What the chief last said; None if it said nothing yet."""
    try:
        with tf.io.gfile.GFile(f"{directory}/{STATUS_FILE}") as file:
            found = json.loads(file.read())
        return Status(State(found["state"]), found["step"], found["reason"], found["time"])
    except (tf.errors.OpError, ValueError, KeyError):
        return None


def check_directory(directory: str | None) -> str:
    """A place where the chief can write, or a clear error."""
    if not directory:
        raise ConfigurationError(
            "model_dir is not set: say where to save, in RunConfig(model_dir=...), with "
            "--model-dir, or in TF_CONFIG"
        )
    scheme = directory.split("://")[0] if "://" in directory else ""
    if scheme in ("s3", "hdfs", "viewfs", "har"):
        raise ConfigurationError(
            f"model_dir is {directory}: TensorFlow 2.21 cannot write to {scheme}://. Use gs://, a "
            "mounted file system (NFS, s3fs, the HDFS NFS gateway), or a local directory; "
            "phalanx.run alone takes hdfs://, and keeps a copy there"
        )
    probe = f"{directory}/.phalanx-write-test-{uuid.uuid4().hex}"
    try:
        tf.io.gfile.makedirs(directory)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("")
        tf.io.gfile.remove(probe)
    except (tf.errors.OpError, OSError) as error:
        raise ConfigurationError(
            f"model_dir {directory} cannot be written: {getattr(error, 'message', error)}. Choose "
            "another, or give the chief the right to write there"
        ) from None
    return directory


def _trackable(step: Reporter) -> Any:
    """The model, as `tf.train.Checkpoint` sees it."""
    if isinstance(step.model, keras.Model):
        return step.model
    root: dict[str, Any] = {}
    for path, variable in step.named.items():
        *parents, leaf = path.split("/")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = variable.value
    return tf.train.Checkpoint(**_as_trackable(root))


def _as_trackable(node: dict[str, Any]) -> dict[str, Any]:
    return {
        key: tf.train.Checkpoint(**_as_trackable(value)) if isinstance(value, dict) else value
        for key, value in node.items()
    }
