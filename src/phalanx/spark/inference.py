"""Predictions of a SavedModel as a Spark column."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from phalanx.errors import ConfigurationError, DataError
from phalanx.records.storage import is_remote

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.types import DataType
    from pyspark.sql.udf import UserDefinedFunction

    from phalanx.train.export.signatures import Signature
    from phalanx.train.types import Array, ElementSpec

    Columns: TypeAlias = pd.Series | tuple[pd.Series, ...]


def predict_udf(
    saved_model: str,
    *,
    signature: str = "serving_default",
    output: str | None = None,
    batch_size: int = 256,
) -> UserDefinedFunction:
    """Make a Spark function of columns from a SavedModel.

        predict = phalanx.spark.predict_udf("/shared/models/digits")
        df.select("id", predict("image").alias("scores"))

    The function takes a column for each input of the signature, in the order of their names:
    numbers, strings or arrays of the input's shape, flat or nested. It returns a number, a string
    or an array for one output, and a struct for several.

    Args:
        saved_model: A SavedModel, or a directory with versions of it as `phalanx export` writes
            them, which every executor can read. Each Python worker loads it once.
        signature: The signature to call. `serving_examples` takes serialized Examples.
        output: The only output to return.
        batch_size: The number of rows for one call of the model.

    Returns:
        The function of columns.

    Raises:
        ConfigurationError: The model has no such signature or output, or cannot be loaded.
    """
    from pyspark.sql.functions import pandas_udf  # noqa: PLC0415
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    from phalanx.train.export.saved_model import find_version  # noqa: PLC0415
    from phalanx.train.model_dir.remote import needs_local_copy  # noqa: PLC0415

    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}: it must be at least 1")
    if needs_local_copy(saved_model):
        raise ConfigurationError(
            f"{saved_model} cannot be loaded: TensorFlow 2.21 does not read it from there; copy it "
            "to a directory that every executor has"
        )
    if not is_remote(saved_model):
        # Executors have a working directory of their own.
        saved_model = os.path.abspath(saved_model)  # noqa: PTH100
    path, _ = find_version(saved_model)
    outputs = _outputs(path, signature, output)
    names = list(outputs)
    is_struct = output is None and len(outputs) > 1
    fields = [StructField(name, _column_type(spec)) for name, spec in outputs.items()]
    returned = StructType(fields) if is_struct else fields[0].dataType

    def predict(series: Iterator[Columns]) -> Iterator[pd.Series | pd.DataFrame]:
        import pandas as pd  # noqa: PLC0415

        for columns in series:
            inputs = columns if isinstance(columns, tuple) else (columns,)
            found = predict_columns(path, signature, inputs, batch_size)
            cells = {name: found[name].tolist() for name in names}
            yield pd.DataFrame(cells) if is_struct else pd.Series(cells[names[0]])

    import pandas as pd  # noqa: PLC0415

    # PySpark reads from the annotations how many columns come in and what goes out.
    one_input = len(_load(path)[signature].inputs) == 1
    predict.__annotations__ = {
        "series": Iterator[pd.Series] if one_input else Iterator[tuple[pd.Series, ...]],
        "return": Iterator[pd.DataFrame] if is_struct else Iterator[pd.Series],
    }
    return pandas_udf(predict, returned)


def predict_columns(
    path: str, signature: str, columns: Sequence[pd.Series], batch_size: int
) -> Mapping[str, Array]:
    """Return the outputs for all rows of these columns, by name."""
    import numpy as np  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    chosen = _load(path)[signature]
    if len(columns) != len(chosen.inputs):
        raise DataError(
            f"the signature {signature} takes {len(chosen.inputs)} columns "
            f"({', '.join(sorted(chosen.inputs))}), but {len(columns)} were given"
        )
    arrays = {
        name: _array(name, column, chosen.inputs[name])
        for name, column in zip(sorted(chosen.inputs), columns, strict=True)
    }
    parts = []
    for begin in range(0, max(len(columns[0]), 1), batch_size):
        batch = {name: tf.constant(array[begin : begin + batch_size], chosen.inputs[name].dtype)
                 for name, array in arrays.items()}  # fmt: skip
        parts.append({name: value.numpy() for name, value in chosen.call(**batch).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@lru_cache(maxsize=4)
def _load(path: str) -> Mapping[str, Signature]:
    """Load a model once for each Python worker, which serves many tasks."""
    from phalanx.train.export.signatures import load_signatures  # noqa: PLC0415

    return load_signatures(path)


def _array(name: str, column: pd.Series, spec: ElementSpec) -> Array:
    import numpy as np  # noqa: PLC0415

    if column.isna().any():
        raise DataError(f"the column for {name} has nulls: fill them, or leave those rows out")
    shape = [len(column), *(-1 if size is None else size for size in spec.shape[1:])]
    try:
        if not len(column):
            return np.zeros([max(size, 0) for size in shape], spec.dtype.as_numpy_dtype)
        if spec.dtype.name == "string":
            return np.array(column.to_list(), dtype=object).reshape(shape)
        nested = [_to_list(value) for value in column]
        return np.array(nested, spec.dtype.as_numpy_dtype).reshape(shape)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"the column for {name} makes no {spec.dtype.name} tensor of the shape "
            f"{list(spec.shape)}: {error}"
        ) from None


def _to_list(value: object) -> object:
    """Convert nested arrays, which are arrays of objects, for NumPy."""
    import numpy as np  # noqa: PLC0415

    if isinstance(value, np.ndarray) and value.dtype == object:
        return [_to_list(each) for each in value]
    return value


def _outputs(path: str, signature: str, output: str | None) -> dict[str, ElementSpec]:
    signatures = _load(path)
    if signature not in signatures:
        raise ConfigurationError(
            f"{path} has no signature {signature}: it has {', '.join(sorted(signatures))}"
        )
    outputs = dict(sorted(signatures[signature].outputs.items()))
    if output is None:
        return outputs
    if output not in outputs:
        raise ConfigurationError(
            f"the signature {signature} has no output {output}: it has {', '.join(outputs)}"
        )
    return {output: outputs[output]}


def _column_type(spec: ElementSpec) -> DataType:
    from pyspark.sql import types  # noqa: PLC0415

    kinds = {
        "float64": types.DoubleType,
        "int32": types.IntegerType,
        "bool": types.BooleanType,
        "string": types.BinaryType,
    }
    default = types.FloatType if spec.dtype.is_floating else types.LongType
    found = kinds.get(spec.dtype.name, default)()
    for _ in range((spec.shape.rank or 1) - 1):
        found = types.ArrayType(found)
    return found
