"""tf.contrib.tensorboard.plugins.projector: TensorBoard's own, for a `tf.summary.FileWriter`."""

from typing import Any

from tensorboard.plugins import projector
from tensorboard.plugins.projector import EmbeddingInfo, ProjectorConfig, SpriteMetadata

__all__ = ["EmbeddingInfo", "ProjectorConfig", "SpriteMetadata", "visualize_embeddings"]


def visualize_embeddings(summary_writer: Any, config: ProjectorConfig) -> None:
    """Write the configuration of the projector beside the summaries.

    Args:
        summary_writer: The writer of the summaries.
        config: Which variables are embeddings, and the files with their labels.
    """
    projector.visualize_embeddings(summary_writer.get_logdir(), config)
