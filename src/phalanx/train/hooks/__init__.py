"""What happens before, during and after the loop. Each hook is a file of its own."""

from phalanx.train.hooks.base import Every, Hook
from phalanx.train.hooks.checkpoint_saver import CheckpointSaver
from phalanx.train.hooks.evaluator import InlineEvaluator
from phalanx.train.hooks.examples_per_second import ExamplesPerSecond
from phalanx.train.hooks.log_values import LogValues
from phalanx.train.hooks.progress_bar import ProgressBar
from phalanx.train.hooks.stop_at_step import StopAtStep
from phalanx.train.hooks.stop_on_nan import StopOnNaN
from phalanx.train.hooks.summary_saver import SummarySaver

__all__ = [
    "CheckpointSaver",
    "Every",
    "ExamplesPerSecond",
    "Hook",
    "InlineEvaluator",
    "LogValues",
    "ProgressBar",
    "StopAtStep",
    "StopOnNaN",
    "SummarySaver",
]
