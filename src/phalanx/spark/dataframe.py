"""A DataFrame as training data: written once as TFRecord files, which every task then reads."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from phalanx.data import Pipeline
from phalanx.errors import DataError
from phalanx.records.storage import remove, resolve
from phalanx.records.storage.listing import find_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from phalanx.train.context import Context
    from phalanx.train.types import Batch, Dataset, Tensor

SETTING = "spark.phalanx.cacheDir"


@dataclass(frozen=True)
class CachedDataFrame:
    """The rows of a DataFrame in files, for `train_data` and `eval_data` of an experiment.

    Called with the context, it returns a `tf.data.Dataset` of the task's shard.
    """

    pipeline: Pipeline
    directory: str

    def map(self, function: Callable[..., Batch], *, seeded: bool = False) -> CachedDataFrame:
        """Transform each batch by a function of tensors; see `Pipeline.map`."""
        return replace(self, pipeline=self.pipeline.map(function, seeded=seeded))

    def __len__(self) -> int:
        return len(self.pipeline)

    def __call__(self, context: Context) -> Dataset:
        return self.pipeline.dataset(context.batch_size, share=context, epochs=1)

    def delete(self) -> None:
        """Delete the files."""
        _WRITTEN.pop(self.directory, None)
        remove(self.directory)


# The DataFrames that this process has written, by directory.
_WRITTEN: dict[str, DataFrame] = {}


def dataset(
    df: DataFrame,
    *,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    seed: int | None = None,
    raw: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
    cache_dir: str | None = None,
) -> CachedDataFrame:
    """Use a DataFrame as the data of an experiment.

        train, test = df.randomSplit([0.9, 0.1], seed=1)
        experiment = phalanx.Experiment(
            model=make_model,
            train_data=phalanx.spark.dataset(train, features="pixels", label="digit", seed=1),
            eval_data=phalanx.spark.dataset(test, features="pixels", label="digit"),
        )

    The rows are written as TFRecord files to a new directory in `cache_dir`, once for the same
    DataFrame. The files are deleted when the driver ends.

    Args:
        df: The DataFrame.
        features: The column, or columns, of the features; all but the label by default.
        label: The column of the label.
        seed: Shuffles the rows; without one they keep their order.
        raw: As in `Pipeline.from_records`.
        defaults: As in `Pipeline.from_records`.
        cache_dir: A directory that the driver and every executor can reach; by default
            `spark.phalanx.cacheDir` or, with a local master, a temporary directory.

    Returns:
        The data. A batch is a dictionary of columns or, with a `label`, a pair of features and
        label; the features are a tensor if `features` is one name, and else a dictionary.

    Raises:
        DataError: A column does not exist, or no cache directory is known.
    """
    wanted = _columns(df, features, label)
    df = df.select(*wanted) if wanted != df.columns else df
    directory = _write_once(df, cache_dir)
    files = [file.path for file in find_files([directory])]
    pipeline = Pipeline.from_records(files, seed=seed, raw=raw, defaults=defaults)
    if label is not None or features is not None:
        names = [name for name in wanted if name != label]
        chosen = features if isinstance(features, str) else names
        pipeline = pipeline.map(partial(select, features=chosen, label=label))
    return CachedDataFrame(pipeline, directory)


def select(batch: Mapping[str, Tensor], features: str | Sequence[str], label: str | None) -> Batch:
    """Return the features of a batch, with the label if there is one."""
    x = batch[features] if isinstance(features, str) else {name: batch[name] for name in features}
    return x if label is None else (x, batch[label])


def _columns(df: DataFrame, features: str | Sequence[str] | None, label: str | None) -> list[str]:
    features = df.columns if features is None else features
    wanted = [features] if isinstance(features, str) else list(features)
    if label is not None and label not in wanted:
        wanted.append(label)
    missing = [name for name in wanted if name not in df.columns]
    if missing:
        raise DataError(
            f"there is no column {', '.join(missing)}: there are {', '.join(df.columns)}"
        )
    return wanted


def _write_once(df: DataFrame, cache_dir: str | None) -> str:
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


def _find_cache(session: SparkSession, cache_dir: str | None) -> str:
    found = cache_dir or session.conf.get(SETTING, None)
    if found:
        return resolve(str(found).rstrip("/"))
    master = session.conf.get("spark.master", "")
    if not master.startswith("local"):
        raise DataError(
            f"no directory to write the DataFrame to: name one that the driver and every executor "
            f"of {master} can reach, with cache_dir=... or {SETTING}"
        )
    temporary = tempfile.mkdtemp(prefix="phalanx-dataframe-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _delete_all() -> None:
    for directory in list(_WRITTEN):
        with contextlib.suppress(Exception):
            remove(directory)
    _WRITTEN.clear()
