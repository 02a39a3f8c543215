"""Event files for TensorBoard, written by the chief and the evaluator only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf


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
        specs = [tf.TensorSpec([1, *value.shape[1:]], value.dtype) for value in inputs]
        function = tf.function(lambda *values: model(values[0] if len(values) == 1 else values))
        with self._writer("train").as_default(step=0):
            tf.summary.graph(function.get_concrete_function(*specs).graph)

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, kind: str) -> Any:
        if kind not in self._writers:
            place = self._directory if kind == "train" else os.path.join(self._directory, kind)
            self._writers[kind] = tf.summary.create_file_writer(place)
        return self._writers[kind]
