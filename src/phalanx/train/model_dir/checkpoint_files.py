"""The files of checkpoints: written aside, verified, committed by one rename, and deleted again.

TensorFlow's list of checkpoints, the file `checkpoint`, decides which of them exist. A checkpoint
is written into a hidden directory, read back, moved into place, and committed when the new list is
renamed over the old one. A process that dies before that leaves the old list, and all its files.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf
from google.protobuf import text_format

from phalanx.errors import CheckpointError, SaveError
from phalanx.train.model_dir.intact import describe_error, verify_checkpoint
from phalanx.train.model_dir.layout import CHECKPOINT_LIST, checkpoint_name, list_checkpoints
from phalanx.train.model_dir.table_changes import find_base

LOG = logging.getLogger("phalanx")

_ASIDE = ".saving"


@dataclass(frozen=True)
class _Entry:
    path: str
    time: float
    base: str | None = None
    """The full checkpoint that an incremental one needs."""


class CheckpointFiles:
    """The list of checkpoints in a directory, and how many of them are kept.

    Args:
        directory: A model_dir.
        keep_max: The number of recent checkpoints to keep.
        keep_every_hours: In addition to these, keep one checkpoint of every so many hours.
        clock: Returns the Unix time.
    """

    def __init__(
        self,
        directory: str,
        keep_max: int,
        keep_every_hours: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._keep_max = keep_max
        self._keep_seconds = keep_every_hours * 3600
        self._clock = clock
        self._entries: list[_Entry] | None = None
        self._preserved_time = 0.0
        self._damaged: set[str] = set()

    def forget(self, path: str) -> None:
        """Leave a checkpoint that cannot be read out of the next list; its files stay."""
        self._damaged.add(path)

    def write(
        self,
        step: int,
        write: Callable[[str], object],
        verify: Callable[[str], None] = verify_checkpoint,
        base: str | None = None,
    ) -> str:
        """Write a checkpoint and commit it.

        Args:
            step: The step of the checkpoint.
            write: Writes the checkpoint with the prefix that it is given.
            verify: Reads it back; raises CheckpointError if it is damaged.
            base: The full checkpoint that an incremental one needs; it is kept as long.

        Returns:
            The path of the checkpoint.

        Raises:
            SaveError: It could not be written. All earlier checkpoints are unchanged.
        """
        name = checkpoint_name(step)
        aside, path = f"{self._directory}/{_ASIDE}", f"{self._directory}/{name}"
        self._load()
        try:
            _remove_tree(aside)
            tf.io.gfile.makedirs(aside)
            write(f"{aside}/{name}")
            verify(f"{aside}/{name}")
            # The index is the last one: without it, there is no checkpoint.
            files = sorted(tf.io.gfile.glob(f"{aside}/{name}.*"))
            for file in files:
                _sync(file)
                tf.io.gfile.rename(file, f"{self._directory}/{Path(file).name}", overwrite=True)
            _sync(self._directory)
            old = self._commit(path, base)
        except (tf.errors.OpError, OSError, CheckpointError) as error:
            _remove_tree(aside)
            raise SaveError(f"{path} cannot be written: {describe_error(error)}") from error
        _remove_tree(aside)
        for each in old:
            _remove_files(each)
        return path

    def _commit(self, path: str, base: str | None) -> list[str]:
        """Replace the list, and return the checkpoints that are no longer in it."""
        now, preserved_time = self._clock(), self._preserved_time
        entries = [e for e in self._entries or [] if e.path != path and e.path not in self._damaged]
        entries.append(_Entry(path, now, base))
        bases = {entry.base for entry in entries[-self._keep_max :]}
        kept, dropped = [], []
        for number, entry in enumerate(entries):
            if len(entries) - number <= self._keep_max or entry.path in bases:
                kept.append(entry)
            elif entry.base is None and entry.time - preserved_time >= self._keep_seconds:
                # It stays on the disk, and is forgotten here, as TensorFlow does it.
                preserved_time = entry.time
            else:
                dropped.append(entry.path)
        # Names without the directory, which may be moved or copied. An absolute path as the first
        # argument keeps them as they are.
        state = tf.compat.v1.train.generate_checkpoint_state_proto(
            "/",
            path.removeprefix(f"{self._directory}/"),
            all_model_checkpoint_paths=[e.path.removeprefix(f"{self._directory}/") for e in kept],
            all_model_checkpoint_timestamps=[e.time for e in kept],
            last_preserved_timestamp=preserved_time,
        )
        new = f"{self._directory}/{_ASIDE}/{CHECKPOINT_LIST}"
        with tf.io.gfile.GFile(new, "w") as file:
            file.write(text_format.MessageToString(state))
        _sync(new)
        tf.io.gfile.rename(new, f"{self._directory}/{CHECKPOINT_LIST}", overwrite=True)
        _sync(self._directory)
        self._entries, self._preserved_time = kept, preserved_time
        self._damaged.discard(path)
        return dropped

    def _load(self) -> None:
        """Read the list of an earlier start of this run, once, before new files are in place."""
        if self._entries is not None:
            return
        now = self._clock()
        paths = list_checkpoints(self._directory)
        state = None
        with contextlib.suppress(ValueError):
            state = tf.train.get_checkpoint_state(self._directory)
        times, preserved_time = dict[str, float](), now
        if state is not None:
            times = dict(
                zip(state.all_model_checkpoint_paths, state.all_model_checkpoint_timestamps,
                    strict=False)
            )  # fmt: skip
            preserved_time = min(state.last_preserved_timestamp or now, now)
        # A clock that was set back must not keep everything.
        self._entries = [
            _Entry(path, min(times.get(path, now), now), _find_base(path)) for path in paths
        ]
        self._preserved_time = preserved_time


def _find_base(path: str) -> str | None:
    try:
        return find_base(path)
    except (tf.errors.OpError, ValueError, IndexError):
        return None  # It is damaged, and passed over by whoever loads it.


def _sync(path: str) -> None:
    """Write a local file, or the names in a directory, to the disk itself."""
    if "://" in path:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_tree(path: str) -> None:
    with contextlib.suppress(tf.errors.OpError, OSError):
        tf.io.gfile.rmtree(path)


def _remove_files(path: str) -> None:
    """Delete an old checkpoint, its index first, so that no reader takes the rest for a whole."""
    try:
        for file in sorted(tf.io.gfile.glob(f"{path}.*"), reverse=True):
            tf.io.gfile.remove(file)
    except (tf.errors.OpError, OSError) as error:
        LOG.warning("the old checkpoint %s was not deleted: %s", path, describe_error(error))
