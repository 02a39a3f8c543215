"""Train on a DataFrame and add predictions to a DataFrame, inside one Spark cluster.

    python examples/spark/train.py --master 'local[4]' --dir runs/spark

The program writes rows as TFRecord files, trains a model on them with a chief, two workers and a
parameter server, each a Spark task, and adds its predictions as a column. To run it on a cluster,
use spark-submit with its --master; --dir must then be a directory that all machines share.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
import tensorflow as tf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import phalanx
import phalanx.spark
from phalanx.data import Pipeline
from phalanx.train.export import export
from phalanx.train.model_dir.checkpoint_loader import load_trained


def make_points(spark: SparkSession, count: int) -> DataFrame:
    """Return random points in a square, and whether each is inside a circle."""
    points = spark.range(count).select(
        "id", (F.rand(1) * 2 - 1).alias("a"), (F.rand(2) * 2 - 1).alias("b")
    )
    inside = (F.col("a") ** 2 + F.col("b") ** 2 < 0.6).cast("int")
    return points.select(
        "id", F.array("a", "b").cast("array<float>").alias("point"), inside.alias("inside")
    )


class Circle(phalanx.Experiment):
    def __init__(self, files: str) -> None:
        self.files = files

    def model(self) -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((2,), name="point"),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.005), "binary_crossentropy", metrics=["accuracy"])
        return model

    def train_data(self, context: phalanx.Context) -> tf.data.Dataset:
        pipeline = Pipeline.from_records(f"{self.files}/*.tfrecord", seed=1)
        pipeline = pipeline.map(lambda batch: (batch["point"], batch["inside"]))
        return pipeline.dataset(context.batch_size, share=context, epochs=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--dir", type=Path, default=Path("runs/spark"))
    parser.add_argument("--master", help="default: the master of spark-submit")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    directory = arguments.dir.resolve()

    builder = SparkSession.builder.appName("circle")
    if arguments.master:
        builder = builder.master(arguments.master)  # overrides the master of spark-submit
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    points = make_points(spark, 6000)
    train, test = points.randomSplit([0.9, 0.1], seed=1)

    train.write.format("tfrecord").mode("overwrite").save(f"{directory}/records")

    experiment = Circle(f"{directory}/records")
    config = phalanx.RunConfig(
        model_dir=f"{directory}/model", train_steps=arguments.steps, global_batch_size=96
    )
    result = phalanx.spark.run(experiment, config, workers=2, ps=1, restarts=1)

    trained = load_trained(experiment, config, result.checkpoint)
    model = export(experiment, trained, f"{directory}/export")

    predict = phalanx.spark.predict_udf(model)
    predictions = test.withColumn("probability", predict("point")[0])
    predictions.show(5, truncate=False)
    correct = ((F.col("probability") > 0.5).cast("int") == F.col("inside")).cast("double")
    accuracy = predictions.agg(F.mean(correct)).first()[0]
    print(f"accuracy {accuracy:.1%} on {test.count()} points, after {result.step} steps")
    spark.stop()


if __name__ == "__main__":
    main()
