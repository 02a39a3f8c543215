"""A SavedModel as a function of the columns of a real Spark."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.spark import stop_spark

from phalanx.errors import ConfigurationError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed, which Spark needs")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.log.level", "OFF").getOrCreate()
    yield session
    stop_spark(session)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two inputs, two outputs, and a signature for serialized Examples."""
    import tensorflow as tf

    class Model(tf.Module):  # type: ignore[misc]
        @tf.function(  # type: ignore[untyped-decorator]
            input_signature=[
                tf.TensorSpec([None], tf.float32, "a"),
                tf.TensorSpec([None, 2, 2], tf.float32, "b"),
            ]
        )
        def both(self, a: Any, b: Any) -> Any:
            return {"total": a + tf.reduce_sum(b, [1, 2]), "rows": tf.reduce_sum(b, 2)}

        @tf.function(  # type: ignore[untyped-decorator]
            input_signature=[tf.TensorSpec([None], tf.string, "examples")]
        )
        def examples(self, examples: Any) -> Any:
            parsed = tf.io.parse_example(examples, {"n": tf.io.FixedLenFeature([], tf.int64)})
            return {"double": parsed["n"] * 2}

    root = Model()
    path: Path = tmp_path_factory.mktemp("models") / "1"
    signatures = {"serving_default": root.both, "serving_examples": root.examples}
    tf.saved_model.save(root, str(path), signatures)
    return str(path.parent)


def test_columns_in_order_of_input_names_return_a_struct(spark: Any, model: str) -> None:
    from phalanx.spark import predict_udf

    rows = [(float(i), [[1.0, 2.0], [3.0, float(i)]], [1.0, 2.0, 3.0, float(i)]) for i in range(9)]
    schema = "a float, nested array<array<float>>, flat array<float>"
    frame = spark.createDataFrame(rows, schema).repartition(3)
    predict = predict_udf(model, batch_size=2)
    found = frame.select("a", predict("a", "nested").alias("p")).collect()
    assert {row.a: (row.p.total, row.p.rows) for row in found} == {
        float(i): (2.0 * i + 6, [3.0, 3.0 + i]) for i in range(9)
    }
    total = predict_udf(model, output="total")
    values = [row[0] for row in frame.select(total("a", "flat")).collect()]
    assert sorted(values) == [2.0 * i + 6 for i in range(9)]
    assert dict(frame.select(total("a", "flat").alias("t")).dtypes) == {"t": "float"}


def test_serialized_examples_as_a_column(spark: Any, model: str) -> None:
    from phalanx.records.spark import to_example
    from phalanx.spark import predict_udf

    predict = predict_udf(model, signature="serving_examples")
    frame = spark.range(5).selectExpr("id AS n").select(to_example("n").alias("example"))
    assert sorted(row[0] for row in frame.select(predict("example")).collect()) == [0, 2, 4, 6, 8]


def test_nulls_and_wrong_shapes_raise(spark: Any, model: str) -> None:
    from phalanx.spark import predict_udf

    predict = predict_udf(model)
    frame = spark.createDataFrame([(None, [1.0])], "a float, b array<float>")
    with pytest.raises(Exception, match="the column for a has nulls"):
        frame.select(predict("a", "b")).collect()
    with pytest.raises(Exception, match=r"makes no float32 tensor of the shape \[None, 2, 2\]"):
        frame.fillna(1.0).select(predict("a", "b")).collect()


def test_wrong_use(spark: Any, model: str, tmp_path: Path) -> None:
    from phalanx.spark import predict_udf

    with pytest.raises(ConfigurationError, match="has no signature no: it has serving_default"):
        predict_udf(model, signature="no")
    with pytest.raises(ConfigurationError, match="has no output no: it has rows, total"):
        predict_udf(model, output="no")
    with pytest.raises(ConfigurationError, match=r"does not read it from there; copy it"):
        predict_udf("hdfs://there/model")
    with pytest.raises(ConfigurationError, match="there is no SavedModel"):
        predict_udf(str(tmp_path))
