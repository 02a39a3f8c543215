"""Event files for TensorBoard and the metrics log, written by the chief and the evaluator."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import keras
import tensorflow as tf

from phalanx.train.model_dir import layout
from phalanx.train.model_dir.intact import describe_error
from phalanx.train.model_dir.metrics_log import MetricsEntry, format_entry
from phalanx.train.types import Array, Model, SummaryWriter, Tensor
from phalanx.train.variables.sparse_tables import TracedLookups

LOG = logging.getLogger("phalanx")


def append_entry(directory: str, file_name: str, entry: MetricsEntry) -> None:
    """Append a line to the metrics log of a model_dir."""
    with (
        _log_write_errors(file_name),
        tf.io.gfile.GFile(f"{directory}/{file_name}", "a") as file,
    ):
        file.write(format_entry(entry))


class Summaries:
    """Writes `train` summaries into model_dir and `eval` summaries into model_dir/eval.

    Without a model_dir it writes nothing.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._writers: dict[str, SummaryWriter] = {}

    def write_scalars(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        with self._writing(kind, step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def write_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars and a line of eval.jsonl."""
        self.write_scalars(layout.EVALUATION_FOLDER, step, values)
        entry = MetricsEntry(step, values, checkpoint=layout.checkpoint_name(step))
        self._log(layout.EVALUATION_LOG, entry)

    def write_training(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars and a line of train.jsonl."""
        self.write_scalars("train", step, values)
        self._log(layout.TRAINING_LOG, MetricsEntry(step, values))

    def write_histograms(self, kind: str, step: int, values: Mapping[str, Array]) -> None:
        with self._writing(kind, step):
            for name, value in values.items():
                tf.summary.histogram(name, value)

    def write_images(self, kind: str, step: int, name: str, images: Tensor) -> None:
        """Write at most 8 images of the shape [n, height, width, channels]."""
        with self._writing(kind, step):
            tf.summary.image(name, images, max_outputs=8)

    def write_graph(self, model: Model) -> None:
        """Write the graph of a Keras model that knows its inputs."""
        inputs = getattr(model, "inputs", None) if isinstance(model, keras.Model) else None
        if not inputs:
            return
        shape = inputs[0] if isinstance(model, keras.Sequential) else model.input
        specs = keras.tree.map_structure(
            lambda value: tf.TensorSpec([value.shape[0] or 1, *value.shape[1:]], value.dtype), shape
        )
        # A sparse table need not be on this host.
        with TracedLookups().activate():
            graph = tf.function(model.__call__).get_concrete_function(specs).graph
        with self._writing("train", 0):
            tf.summary.graph(graph)

    def close(self) -> None:
        for writer in self._writers.values():
            with _log_write_errors("a summary"):
                writer.close()
        self._writers.clear()

    def _log(self, file_name: str, entry: MetricsEntry) -> None:
        if self._directory is not None:
            append_entry(self._directory, file_name, entry)

    @contextmanager
    def _writing(self, kind: str, step: int) -> Iterator[None]:
        writer: SummaryWriter = None
        with _log_write_errors("a summary"):
            writer = self._writer(kind)
        # The default writer flushes when the block ends.
        default = writer.as_default(step) if writer is not None else nullcontext()
        with _log_write_errors("a summary"), default:
            yield

    def _writer(self, kind: str) -> SummaryWriter:
        if self._directory is None:
            return tf.summary.create_noop_writer()
        if kind not in self._writers:
            folder = self._directory if kind == "train" else f"{self._directory}/{kind}"
            self._writers[kind] = tf.summary.create_file_writer(folder)
        return self._writers[kind]


@contextmanager
def _log_write_errors(what: str) -> Iterator[None]:
    """Log that something was not written: a full or read-only disk does not end the run."""
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        LOG.warning("%s was not written: %s", what, describe_error(error))
