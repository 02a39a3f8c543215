"""The data of a custom loop: the shard of one worker, and whether it can be sent to a worker."""

import logging
from dataclasses import dataclass

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.context import Context
from phalanx.train.custom_loop.task_spec import TaskSpecDef
from phalanx.train.experiment import call
from phalanx.train.runtime.worker_data import calls_python, read_graph, shuffles_before_shard
from phalanx.train.types import Dataset, GraphDef, UserFunction

LOG = logging.getLogger("phalanx")


@dataclass(frozen=True)
class SessionData:
    """The function that the user passed to `session.dataset`."""

    make: UserFunction
    task_spec: TaskSpecDef

    def make_shard(self, context: Context) -> Dataset:
        """Build the dataset of one worker."""
        with self.task_spec.reading_shard(context):
            data = call(self.make, context)
        if tf.executing_eagerly():
            _warn_of_shuffle(read_graph(data), context)
        return data

    def check_can_be_sent(self, context: Context) -> None:
        """Check that workers can run the function; a dataset object cannot be sent to them."""
        function = tf.function(lambda: self.make_shard(context), autograph=False)
        traced = function.get_concrete_function()
        if any(tensor.dtype == tf.variant for tensor in traced.captured_inputs):
            raise ConfigurationError(
                "the function passed to session.dataset uses a dataset that was created outside of "
                "it, which cannot be sent to the workers: create the whole dataset inside the "
                "function"
            )
        graph = traced.graph.as_graph_def()
        if calls_python(graph):
            raise ConfigurationError(
                "the function passed to session.dataset calls Python (from_generator, py_function, "
                "numpy_function), which cannot be sent to the workers: use only operations of "
                "TensorFlow, or phalanx.run, where each worker creates its data itself"
            )
        _warn_of_shuffle(graph, context)


def _warn_of_shuffle(graph: GraphDef, context: Context) -> None:
    if context.num_shards > 1 and shuffles_before_shard(graph):
        LOG.warning(
            "the data is shuffled before it is sharded, so workers read some examples twice and "
            "others never: shard first, then shuffle"
        )
