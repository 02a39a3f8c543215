"""What happens before, during and after the loop. Each hook is a file of its own."""

from phalanx.train.hooks.action import ActionHook
from phalanx.train.hooks.base import At, Every, Hook, When
from phalanx.train.hooks.best_exporter import BestExporterHook
from phalanx.train.hooks.checkpoint_saver import CheckpointSaver
from phalanx.train.hooks.early_stopping import EarlyStoppingHook
from phalanx.train.hooks.evaluator import InlineEvaluator
from phalanx.train.hooks.examples_per_second import ExamplesPerSecond
from phalanx.train.hooks.load_checkpoint import LoadCheckpoint
from phalanx.train.hooks.log_values import LogValues
from phalanx.train.hooks.profiler import ProfilerHook
from phalanx.train.hooks.progress_bar import ProgressBar
from phalanx.train.hooks.stop_at_step import StopAtStep
from phalanx.train.hooks.stop_at_time import StopAtTimeHook
from phalanx.train.hooks.stop_on_nan import StopOnNaN
from phalanx.train.hooks.summary_saver import SummarySaver

__all__ = [
    "ActionHook",
    "At",
    "BestExporterHook",
    "CheckpointSaver",
    "EarlyStoppingHook",
    "Every",
    "ExamplesPerSecond",
    "Hook",
    "InlineEvaluator",
    "LoadCheckpoint",
    "LogValues",
    "ProfilerHook",
    "ProgressBar",
    "StopAtStep",
    "StopAtTimeHook",
    "StopOnNaN",
    "SummarySaver",
    "When",
]
