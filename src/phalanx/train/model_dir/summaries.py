"""Event files for TensorBoard, written by the chief and the evaluator only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from phalanx.train.model_dir.metrics_log import EVALUATIONS, TRAINING, Evaluation, format_evaluation


class Summaries:
    """Writers made when they are first needed: `train` in model_dir, `eval` in model_dir/eval."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._writers: dict[str, Any] = {}

    def write_scalars(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """One point for each curve."""
        with self._writer(kind).as_default(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._writer(kind).flush()

    def write_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """The curves of the evaluation, and a line of eval.jsonl."""
        self.write_scalars("eval", step, values)
        line = format_evaluation(Evaluation(step, values, checkpoint=f"model.ckpt-{step}"))
        self._append(EVALUATIONS, line)

    def write_training(self, step: int, values: Mapping[str, float]) -> None:
        """The curves of the training, and a line of train.jsonl."""
        self.write_scalars("train", step, values)
        self._append(TRAINING, format_evaluation(Evaluation(step, values)))

    def _append(self, file_name: str, line: str) -> None:
        with tf.io.gfile.GFile(f"{self._directory}/{file_name}", "a") as file:
            file.write(line)

    def write_histograms(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """How the numbers of each array are spread."""
        with self._writer(kind).as_default(step):
            for name, value in values.items():
                tf.summary.histogram(name, value)
        self._writer(kind).flush()

    def write_images(self, kind: str, step: int, name: str, images: Any) -> None:
        """Pictures, [n, height, width, channels]."""
        with self._writer(kind).as_default(step):
            tf.summary.image(name, images, max_outputs=8)
        self._writer(kind).flush()

    def write_graph(self, model: Any) -> None:
        """The model's graph, where its inputs are known."""
        inputs = getattr(model, "inputs", None) if isinstance(model, keras.Model) else None
        if not inputs:
            return
        shape = inputs[0] if isinstance(model, keras.Sequential) else model.input
        specs = keras.tree.map_structure(
            lambda value: tf.TensorSpec([1, *value.shape[1:]], value.dtype), shape
        )
        with self._writer("train").as_default(step=0):
            tf.summary.graph(tf.function(model.__call__).get_concrete_function(specs).graph)

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, kind: str) -> Any:
        if kind not in self._writers:
            place = self._directory if kind == "train" else f"{self._directory}/{kind}"
            self._writers[kind] = tf.summary.create_file_writer(place)
        return self._writers[kind]
