"""Finds a checkpoint that can be read: one that cannot is named, and the one before it is used.

Everything that reads checkpoints goes through `load_first`: training, evaluators, exports,
predictions and warm starts.
"""

import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

import tensorflow as tf

from phalanx.errors import CheckpointError, ConfigurationError
from phalanx.train.model_dir.layout import candidate_checkpoints
from phalanx.train.model_dir.table_changes import check_base, find_base, find_changes
from phalanx.train.model_dir.table_slices import verify_slices

LOG = logging.getLogger("phalanx")

T = TypeVar("T")

_NO_DAMAGE = (
    tf.errors.InvalidArgumentError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnauthenticatedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.CancelledError,
    tf.errors.AbortedError,
)
"""What TensorFlow raises for reasons other than a damaged, truncated or missing file."""

_SETTLED_SECONDS = 5.0
_Fingerprint = tuple[tuple[str, int, int], ...]
_verified: dict[str, _Fingerprint] = {}


def load_first(paths: Iterable[str], load: Callable[[str], T]) -> tuple[str, T]:
    """Load the first checkpoint that can be loaded, and name those that are passed over.

    Args:
        paths: The checkpoints, the preferred one first.
        load: Loads one of them; raises CheckpointError if it is damaged, or of another model.

    Returns:
        The path of the checkpoint that was loaded, and what `load` returned.

    Raises:
        CheckpointError: None of them can be loaded. The error of the first one is raised.
    """
    first: CheckpointError | None = None
    passed: list[str] = []
    for path in paths:
        try:
            loaded = load(path)
        except CheckpointError as error:
            LOG.warning("passing over a checkpoint: %s", error)
            first = first or error
            passed.append(path)
            continue
        if passed:
            LOG.warning("using %s instead of %s", path, ", ".join(passed))
        return path, loaded
    if first is None:
        raise ConfigurationError("there is no checkpoint to load")
    others = f"; none of the other {len(passed) - 1} can be read either" if passed[1:] else ""
    raise CheckpointError(f"{first}{others}") from first


def find_intact(directory: str) -> str | None:
    """Return the newest checkpoint of a directory whose contents are intact; None without any.

    Raises:
        CheckpointError: There are checkpoints, and all of them are damaged.
    """
    paths = candidate_checkpoints(directory)
    return load_first(paths, _verify_once)[0] if paths else None


def verify_checkpoint(path: str, sliced: Collection[str] = ()) -> None:
    """Read a whole checkpoint, and compare its contents with TensorFlow's checksums.

    Args:
        path: The checkpoint.
        sliced: The names of tensors that are stored in slices, and read one after the other.

    Raises:
        CheckpointError: It is damaged.
    """
    with explain_read_errors(path, "run"):
        reader = tf.train.load_checkpoint(path)
        types = reader.get_variable_to_dtype_map()
        changed = find_changes(path)
        for name, shape in reader.get_variable_to_shape_map().items():
            if name in changed:
                continue  # The base of this incremental checkpoint has the table.
            if name in sliced:
                verify_slices(path, name, shape, types[name])
            else:
                reader.get_tensor(name)


def _verify_once(path: str) -> None:
    """Verify a checkpoint, unless this process has verified the same files before."""
    files = sorted(tf.io.gfile.glob(f"{path}.*"))
    found = tuple((name, (s := tf.io.gfile.stat(name)).length, s.mtime_nsec) for name in files)
    if _verified.get(path) != found:
        verify_checkpoint(path)
        if (base := find_base(path)) is not None:
            check_base(path, base)
            _verify_once(base)
        # Files that are newer may change again without another time.
        if time.time() - max(changed for _, _, changed in found) / 1e9 > _SETTLED_SECONDS:
            _verified[path] = found


@contextlib.contextmanager
def explain_damage(path: str) -> Iterator[None]:
    """Turn TensorFlow's errors about a damaged or incomplete checkpoint into ours."""
    try:
        yield
    except (tf.errors.OpError, IndexError) as error:
        if isinstance(error, _NO_DAMAGE):
            raise
        raise CheckpointError(
            f"{path} is damaged ({describe_error(error)}): use another checkpoint or model_dir"
        ) from None


@contextlib.contextmanager
def explain_read_errors(path: str, what: str) -> Iterator[None]:
    """Turn TensorFlow's errors about a damaged checkpoint, or that of another model, into ours."""
    try:
        with explain_damage(path):
            yield
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise CheckpointError(
            f"{path} is a checkpoint of another {what}: {describe_error(error)}. Use another "
            "model_dir, or the model that was saved there"
        ) from None


def describe_error(error: BaseException) -> str:
    """Return the first line of an error, without what TensorFlow adds about its operations."""
    text = str(getattr(error, "message", None) or error).strip() or type(error).__name__
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]$", "", text.splitlines()[0])
