"""Predictions as a column: a SavedModel as a function of columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from phalanx.errors import ConfigurationError, DataError
from phalanx.records.storage import is_remote


def predict_udf(
    saved_model: str,
    *,
    signature: str = "serving_default",
    output: str | None = None,
    batch_size: int = 256,
) -> Any:
    """A SavedModel as a function of Spark columns.

        predict = phalanx.spark.predict_udf("/shared/models/digits")
        df.select("id", predict("image").alias("scores"))

    It takes a column for each input of the signature, in the order of their names; numbers, strings
    or arrays of the input's shape, flat or nested. An output is a number, a string or an array;
    several are a struct, unless `output` names one. `serving_examples` takes serialized Examples.

    `saved_model` is a SavedModel or a directory with versions of it, as `phalanx export` writes
    them, where every executor can read it. Each Python worker loads it once.
    """
    from pyspark.sql.functions import pandas_udf  # noqa: PLC0415

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
    is_struct = output is None and len(outputs) > 1
    returned = _struct_type(outputs) if is_struct else _column_type(next(iter(outputs.values())))
    names = list(outputs)

    def predict(series: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd  # noqa: PLC0415

        for columns in series:
            given = columns if isinstance(columns, tuple) else (columns,)
            found = predict_columns(path, signature, given, batch_size)
            if is_struct:
                yield pd.DataFrame({name: _cells(found[name]) for name in names})
            else:
                yield pd.Series(_cells(found[names[0]]))

    return _typed(pandas_udf, predict, returned, _count_inputs(path, signature))


def _typed(pandas_udf: Any, predict: Any, returned: Any, inputs: int) -> Any:
    """PySpark reads from the annotations whether one column comes or several, and what is given."""
    import pandas as pd  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    one = pd.DataFrame if isinstance(returned, StructType) else pd.Series
    came = Iterator[pd.Series] if inputs == 1 else Iterator[tuple[pd.Series, ...]]
    predict.__annotations__ = {"series": came, "return": Iterator[one]}  # type: ignore[valid-type]
    return pandas_udf(predict, returned)


def predict_columns(
    path: str, signature: str, columns: tuple[Any, ...], batch_size: int
) -> Mapping[str, Any]:
    """The outputs for all rows of these columns, as NumPy arrays by name."""
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
    rows = len(columns[0])
    parts = []
    for begin in range(0, max(rows, 1), batch_size):
        batch = {name: tf.constant(array[begin : begin + batch_size], chosen.inputs[name].dtype)
                 for name, array in arrays.items()}  # fmt: skip
        parts.append({name: value.numpy() for name, value in chosen.call(**batch).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@lru_cache(maxsize=4)
def _load(path: str) -> Mapping[str, Any]:
    """Once for each Python worker, which serves many tasks."""
    from phalanx.train.export.signatures import load_signatures  # noqa: PLC0415

    return load_signatures(path)


def _array(name: str, column: Any, spec: Any) -> Any:
    """A column of numbers, or of arrays, in the shape of an input."""
    import numpy as np  # noqa: PLC0415

    if column.isna().any():
        raise DataError(f"the column for {name} has nulls: fill them, or leave those rows out")
    shape = [len(column), *(-1 if size is None else size for size in spec.shape[1:])]
    try:
        if not len(column):
            return np.zeros([max(size, 0) for size in shape], spec.dtype.as_numpy_dtype)
        if spec.dtype.name == "string":
            return np.array(column.to_list(), dtype=object).reshape(shape)
        nested = [_plain(value) for value in column]
        return np.array(nested, spec.dtype.as_numpy_dtype).reshape(shape)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"the column for {name} makes no {spec.dtype.name} tensor of the shape "
            f"{list(spec.shape)}: {error}"
        ) from None


def _plain(value: Any) -> Any:
    """Arrays of arrays come as arrays of objects, from which NumPy makes no tensor."""
    import numpy as np  # noqa: PLC0415

    if getattr(value, "dtype", None) is np.dtype(object):
        return [_plain(each) for each in value]
    return value


def _cells(values: Any) -> list[Any]:
    return values.tolist()  # type: ignore[no-any-return]


def _count_inputs(path: str, signature: str) -> int:
    return len(_load(path)[signature].inputs)


def _outputs(path: str, signature: str, output: str | None) -> dict[str, Any]:
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


def _struct_type(outputs: Mapping[str, Any]) -> Any:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    return StructType([StructField(name, _column_type(spec)) for name, spec in outputs.items()])


def _column_type(spec: Any) -> Any:
    """The Spark type of one row of an output."""
    from pyspark.sql import types  # noqa: PLC0415

    kinds = {
        "float64": types.DoubleType,
        "int32": types.IntegerType,
        "bool": types.BooleanType,
        "string": types.BinaryType,
    }
    default = types.FloatType if spec.dtype.is_floating else types.LongType
    found: Any = kinds.get(spec.dtype.name, default)()
    for _ in range((spec.shape.rank or 1) - 1):
        found = types.ArrayType(found)
    return found
