"""Checkpoints of a run: save, restore, and load parts of them."""

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, Interrupted, LeaseError, SaveError
from phalanx.train.custom_loop.custom_step import CustomStep
from phalanx.train.loop.position import Position
from phalanx.train.model_dir.checkpoint_files import CheckpointFiles
from phalanx.train.model_dir.intact import (
    describe_error,
    explain_read_errors,
    load_first,
    verify_checkpoint,
)
from phalanx.train.model_dir.layout import candidate_checkpoints, step_of
from phalanx.train.model_dir.lease import check_lease
from phalanx.train.model_dir.status import HEARTBEAT_SECONDS, State, Status, write_status
from phalanx.train.model_dir.table_keys import KEYS, check_keys, list_tables, number_keys
from phalanx.train.model_dir.table_slices import (
    SharedFiles,
    restore_checkpoint,
    write_checkpoint,
)
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.step.step_function import StepFunction
from phalanx.train.types import Array, TFVariable, Trackable
from phalanx.train.variables.described_variable import DescribedVariable
from phalanx.train.variables.host_variables import HostVariables

LOG = logging.getLogger("phalanx")

_POLL_SECONDS = 0.5
# No checkpoint takes longer, unless a parameter server has stopped responding.
_MOST_SECONDS = 6 * 3600.0


class Checkpoints:
    """The checkpoints of a run, in TensorFlow's own format.

    The names in a checkpoint are those of the model, whatever the cluster. So TensorFlow alone
    reads it too: `tf.train.Checkpoint(model=model).restore(path).expect_partial()`.
    """

    def __init__(
        self,
        directory: str,
        step: StepFunction | CustomStep,
        host_variables: HostVariables,
        *,
        keep_max: int = 5,
        keep_every_hours: float = 10_000,
        global_batch_size: int = 1,
        examples_per_update: int | None = None,
        in_background: bool = False,
        full_save_every: int | None = None,
    ) -> None:
        self.directory = directory
        self._batch = global_batch_size
        self._update = examples_per_update or global_batch_size
        self._last_heartbeat = 0.0
        names = ("step", "epoch", "batches", "examples", "batch")
        self._numbers = {name: tf.Variable(0, dtype=tf.int64, trainable=False) for name in names}
        self._step = step
        parts = {"model": _make_trackable(step), "optimizer": host_variables.optimizer}
        if own := host_variables.own_optimizers():
            numbered = {f"table_{number}": each for number, each in enumerate(own.values())}
            parts["table_optimizers"] = tf.train.Checkpoint(**numbered)
        self._model = tf.train.Checkpoint(model=parts["model"])
        self._whole = tf.train.Checkpoint(**parts, **self._numbers)
        # Restored apart from the rest, because a run may continue with other metrics.
        self._totals = tf.Variable(tf.zeros([0], tf.float64), shape=[None], trainable=False)
        # Older checkpoints do not have it.
        update = tf.Variable(self._update, dtype=tf.int64, trainable=False)
        self._shards = tf.Variable(tf.zeros([0], tf.int64), shape=[None], trainable=False)
        self._tables = list_tables(step.model)
        keys = tf.Variable(number_keys(self._tables), shape=[None], trainable=False)
        self._saved = tf.train.Checkpoint(
            **parts, **self._numbers, totals=self._totals, update=update, shards=self._shards,
            **{KEYS: keys},
        )  # fmt: skip
        self._files = CheckpointFiles(directory, keep_max, keep_every_hours)
        self._shared_files = SharedFiles()
        self._large = [each for each in host_variables.described() if each.is_large]
        self._in_background = in_background
        self._full_save_every = full_save_every or 1
        # The full checkpoint that incremental ones may need, and how many of these it has.
        self._base: str | None = None
        self._since_base = 0
        self._writes: list[int] = []
        self._pending: Future[str] | None = None
        self._latest: str | None = None

    @property
    def latest(self) -> str | None:
        """The checkpoint that was restored or, after that, the last one that was saved."""
        return self._latest

    def restore(self, pass_over: int = 0) -> tuple[int, Position]:
        """Restore the newest checkpoint that can be read, if there is one.

        Args:
            pass_over: How many of the newest checkpoints not to use, nor ever again, if there are
                others.

        Raises:
            CheckpointError: None of them can be read.
        """
        candidates = candidate_checkpoints(self.directory)
        if not candidates:
            return 0, Position()
        others = candidates[pass_over:] or candidates[-1:]
        path, (totals, update, shards) = load_first(others, self._load_with_totals)
        for damaged in candidates[: candidates.index(path)]:
            self._files.forget(damaged)
        self._latest = path
        saved = {name: int(variable.numpy()) for name, variable in self._numbers.items()}
        if update != self._update or saved["batch"] != self._batch:
            shards = ()
        # Asynchronously a step has the batch of one trainer: another number of them changes it.
        update = update or self._update * saved["batch"] // max(self._batch, 1)
        batches = saved["batches"] * update // max(self._update, 1)
        LOG.info("restored step %d from %s", saved["step"], path)
        if len(totals) != self._step.report_size:
            totals = np.zeros([0])
        return saved["step"], Position(saved["epoch"], batches, saved["examples"], totals, shards)

    def _load_with_totals(self, path: str) -> tuple[Array, int, tuple[int, ...]]:
        """Load a checkpoint; return its totals, examples per update and shards if it has them."""
        self.load(path)
        with explain_read_errors(path, "run"):
            reader = tf.train.load_checkpoint(path)

            def read(name: str, default: Any) -> Any:
                full = f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
                return reader.get_tensor(full) if reader.has_tensor(full) else default

            shards = tuple(int(number) for number in read("shards", ()))
            return np.asarray(read("totals", []), np.float64), int(read("update", 0)), shards

    def load(self, path: str) -> None:
        """Load a checkpoint into the host variables."""
        with explain_read_errors(path, "model or optimizer"):
            check_keys(path, self._tables)
            restore_all(self._whole, path)

    def load_model(self, path: str) -> None:
        """Load only the model, for an evaluation."""
        with explain_read_errors(path, "model"):
            check_keys(path, self._tables)
            restore_all(self._model, path)

    def save(self, step: int, position: Position) -> str | None:
        """Save the variables and the position in the data; return the path of the checkpoint.

        Large variables are written in the background, if that is set. Then this returns None as
        soon as they may change again, and `finish_save` returns the path.
        """
        values = (step, position.epoch, position.batches, position.examples, self._batch)
        for variable, value in zip(self._numbers.values(), values, strict=True):
            variable.assign(value)
        self._totals.assign(position.totals)
        self._shards.assign(np.asarray(position.shards, np.int64))
        # `tf.train.Checkpoint.restore` expects the counter that its `save` would write.
        self._saved.save_counter.assign_add(1)
        check_lease(self.directory)
        if not (self._in_background and self._large):
            self._latest = self._write(step)
            return self._latest
        copied = threading.Event()
        self._pending = call_in_background(self._write, step, copied.set)
        while not copied.wait(_POLL_SECONDS) and not self._pending.done():
            pass
        return None

    def finish_save(self, waits: bool) -> str | None:
        """Return the path of a checkpoint whose writing in the background has ended; else None.

        Raises:
            SaveError: It could not be written.
        """
        if self._pending is None or not (waits or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        try:
            self._latest = pending.result(_MOST_SECONDS)
        except FutureTimeoutError:
            raise SaveError(
                f"a checkpoint in {self.directory} was not written within {_MOST_SECONDS:.0f} s"
            ) from None
        return self._latest

    def _write(self, step: int, on_copied: Callable[[], None] | None = None) -> str:
        sliced: list[str] = []
        base = self._choose_base()
        if base is None:
            self._begin_full_save()

        def write(prefix: str) -> None:
            files = self._shared_files
            sliced.extend(write_checkpoint(self._saved, prefix, files, on_copied, base))

        path = self._files.write(step, write, lambda path: verify_checkpoint(path, sliced), base)
        since = "" if base is None else f", with the rows that changed since step {step_of(base)}"
        LOG.info("saved step %d to %s%s", step, path, since)
        self._base = base or path
        self._since_base = 0 if base is None else self._since_base + 1
        self._write_status(Status(State.RUNNING, step))
        return path

    def _choose_base(self) -> str | None:
        """Return the checkpoint that an incremental one is based on; None for a full one."""
        is_due = self._since_base >= self._full_save_every - 1
        if is_due or self._base is None or not self._large:
            return None
        if not self._noted or self._writes != [table.writes for table in self._noted]:
            return None
        return self._base if tf.io.gfile.exists(f"{self._base}.index") else None

    def _begin_full_save(self) -> None:
        """Note changes from now on. A save that fails is followed by another full one."""
        self._base = None
        self._writes = [table.writes for table in self._noted]
        # Slots share the notes of their rows.
        for table in {id(table.changes): table for table in self._noted}.values():
            table.clear_changes()

    @property
    def _noted(self) -> list[DescribedVariable]:
        """The large tables whose changes are noted: of these, only changed rows are saved again."""
        return [variable for variable in self._large if variable.changes]

    def heartbeat(self, step: int, now: float) -> None:
        """Write the status again when the last heartbeat is old enough."""
        if now - self._last_heartbeat >= HEARTBEAT_SECONDS:
            self._last_heartbeat = now
            check_lease(self.directory)
            self._write_status(Status(State.RUNNING, step))

    def mark_done(self, step: int) -> None:
        self._write_status(Status(State.DONE, step))

    def mark_failed(self, error: BaseException) -> None:
        if isinstance(error, LeaseError):
            return  # The status is that of another job now.
        state = State.INTERRUPTED if isinstance(error, Interrupted) else State.FAILED
        reason = f"{type(error).__name__}: {error}"
        self._write_status(Status(state, int(self._numbers["step"]), reason))

    def _write_status(self, status: Status) -> None:
        """Write the status; a disk that is full or read-only does not end the run."""
        try:
            write_status(self.directory, status)
        except (tf.errors.OpError, OSError) as error:
            LOG.warning("the status of the run was not written: %s", describe_error(error))


class NoCheckpoints:
    """Stands for checkpoints in a run without a model_dir, which keeps nothing on disk."""

    directory = ""
    latest = None

    def restore(self, pass_over: int = 0) -> tuple[int, Position]:
        return 0, Position()

    def save(self, step: int, position: Position) -> str:
        return ""

    def finish_save(self, waits: bool) -> str | None:
        return None

    def heartbeat(self, step: int, now: float) -> None:
        pass

    def mark_done(self, step: int) -> None:
        pass

    def mark_failed(self, error: BaseException) -> None:
        pass


def restore_all(checkpoint: Trackable, path: str) -> None:
    """Restore every variable of an object; the file may hold more."""
    restore_checkpoint(checkpoint, path)


def check_directory(directory: str | None) -> str:
    """Return the model_dir if this process can write there, and raise an error otherwise."""
    if not directory:
        raise ConfigurationError(
            "model_dir is not set: set it in RunConfig(model_dir=...), with --model-dir, or in "
            "TF_CONFIG"
        )
    scheme = directory.split("://")[0] if "://" in directory else ""
    if scheme in ("s3", "hdfs", "viewfs", "har"):
        raise ConfigurationError(
            f"model_dir is {directory}: TensorFlow 2.21 cannot write to {scheme}://. Use gs://, a "
            "mounted file system (NFS, s3fs, the HDFS NFS gateway), or a local directory; "
            "only phalanx.run takes hdfs://, where it keeps a copy"
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


def _make_trackable(step: StepFunction | CustomStep) -> Trackable:
    """Return the model as an object that `tf.train.Checkpoint` takes."""
    if isinstance(step.model, keras.Model):
        return step.model
    return _nest({path: variable.value for path, variable in step.named.items()})


def _nest(variables: Mapping[str, TFVariable]) -> Trackable:
    """Make an object with a child for the first part of each path."""
    children: dict[str, dict[str, TFVariable]] = {}
    for path, variable in variables.items():
        first, _, rest = path.partition("/")
        children.setdefault(first, {})[rest] = variable
    return tf.train.Checkpoint(**{k: v[""] if "" in v else _nest(v) for k, v in children.items()})
