"""A DataFrame as training data: written once as TFRecord files, then read by every task."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from phalanx.data import Pipeline
from phalanx.errors import DataError
from phalanx.records.storage import remove, resolve
from phalanx.records.storage.listing import find_files

SETTING = "spark.phalanx.cacheDir"


@dataclass(frozen=True)
class FrameData:
    """The rows of a DataFrame in files: what `train_data` and `eval_data` of an experiment can be.

    Called with the context it is a `tf.data.Dataset` of the task's own share.
    """

    pipeline: Pipeline
    directory: str

    def map(self, function: Callable[..., Any], *, seeded: bool = False) -> FrameData:
        """Change each batch by a function of tensors; see `Pipeline.map`."""
        return replace(self, pipeline=self.pipeline.map(function, seeded=seeded))

    def __len__(self) -> int:
        return len(self.pipeline)

    def __call__(self, context: Any) -> Any:
        """One pass over the task's share, in batches."""
        return self.pipeline.dataset(context.batch_size, share=context, epochs=1)

    def delete(self) -> None:
        """Remove the files."""
        _WRITTEN.pop(self.directory, None)
        remove(self.directory)


# What this process has written, by directory: the DataFrame it came from.
_WRITTEN: dict[str, Any] = {}


def dataset(
    df: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    seed: int | None = None,
    raw: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    cache_dir: str | None = None,
) -> FrameData:
    """A DataFrame as the data of an experiment.

        train, test = df.randomSplit([0.9, 0.1], seed=1)
        experiment = phalanx.Experiment(
            model=make_model,
            train_data=phalanx.spark.dataset(train, features="pixels", label="digit", seed=1),
            eval_data=phalanx.spark.dataset(test, features="pixels", label="digit"),
        )

    It is written as TFRecord files to a directory of its own in `cache_dir`, which the driver and
    every executor must reach (or set `spark.phalanx.cacheDir`; with a local master a temporary one
    will do). The same DataFrame is written once; the files go when the driver ends.

    A batch is a dictionary of columns. With a `label` it is a pair: the features (the named one
    alone, or a dictionary of several; all other columns if none is named) and the label. With a
    `seed` the rows are shuffled. `raw` and `defaults` are `Pipeline.from_records`'s.
    """
    wanted = _columns(df, features, label)
    df = df.select(*wanted) if wanted != df.columns else df
    directory = _write_once(df, cache_dir)
    files = [file.path for file in find_files([directory])]
    pipeline = Pipeline.from_records(files, seed=seed, raw=raw, defaults=defaults)
    if label is not None or features is not None:
        names = [name for name in wanted if name != label]
        chosen = features if isinstance(features, str) else names
        pipeline = pipeline.map(partial(pick, features=chosen, label=label))
    return FrameData(pipeline, directory)


def pick(batch: Mapping[str, Any], features: str | Sequence[str], label: str | None) -> Any:
    """What the model gets of a batch, and the label.

    >>> pick({"a": 1, "b": 2, "y": 3}, "a", "y")
    (1, 3)
    >>> pick({"a": 1, "b": 2, "y": 3}, ["a", "b"], "y")
    ({'a': 1, 'b': 2}, 3)
    """
    x = batch[features] if isinstance(features, str) else {name: batch[name] for name in features}
    return x if label is None else (x, batch[label])


def _columns(df: Any, features: str | Sequence[str] | None, label: str | None) -> list[str]:
    if features is None:
        wanted = list(df.columns)
    else:
        wanted = [features] if isinstance(features, str) else list(features)
    if label is not None and label not in wanted:
        wanted.append(label)
    missing = [name for name in wanted if name not in df.columns]
    if missing:
        raise DataError(
            f"there is no column {', '.join(missing)}: there are {', '.join(df.columns)}"
        )
    return wanted


def _write_once(df: Any, cache_dir: str | None) -> str:
    from phalanx.records.spark import save  # noqa: PLC0415

    for directory, other in _WRITTEN.items():
        if other.sparkSession is df.sparkSession and other.sameSemantics(df):
            return directory
    directory = f"{_find_cache(df.sparkSession, cache_dir)}/phalanx-{secrets.token_hex(8)}"
    if not _WRITTEN:
        atexit.register(_delete_all)
    try:
        save(df, directory)
    except BaseException:
        remove(directory)
        raise
    _WRITTEN[directory] = df
    return directory


def _find_cache(session: Any, cache_dir: str | None) -> str:
    found = cache_dir or session.conf.get(SETTING, None)
    if found:
        return resolve(str(found).rstrip("/"))
    master = session.conf.get("spark.master", "")
    if not master.startswith("local"):
        raise DataError(
            f"no directory to write the DataFrame to: name one that the driver and every executor "
            f"of {master} can reach, with cache_dir=... or {SETTING}"
        )
    temporary = tempfile.mkdtemp(prefix="phalanx-frames-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _delete_all() -> None:
    for directory in list(_WRITTEN):
        with contextlib.suppress(Exception):
            remove(directory)
    _WRITTEN.clear()
