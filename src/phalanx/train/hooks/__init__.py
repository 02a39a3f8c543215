"""What happens before, during and after the loop. Each hook is a file of its own."""

from phalanx.train.hooks.action import ActionHook
from phalanx.train.hooks.base import At, Every, Hook, PeriodicHook, When
from phalanx.train.hooks.best_exporter import BestExporterHook
from phalanx.train.hooks.checkpoint_saver import CheckpointHook
from phalanx.train.hooks.early_stopping import EarlyStoppingHook
from phalanx.train.hooks.evaluator import EvaluationHook
from phalanx.train.hooks.examples_per_second import ExamplesPerSecondHook
from phalanx.train.hooks.gradient_norm import GradientNormHook
from phalanx.train.hooks.load_checkpoint import LoadCheckpoint
from phalanx.train.hooks.log_values import LoggingHook
from phalanx.train.hooks.profiler import ProfilerHook
from phalanx.train.hooks.progress_bar import ProgressBarHook
from phalanx.train.hooks.stop_at_step import StopAtStepHook
from phalanx.train.hooks.stop_at_time import StopAtTimeHook
from phalanx.train.hooks.stop_on_nan import NanHook
from phalanx.train.hooks.summary_saver import SummaryHook

__all__ = [
    "ActionHook",
    "At",
    "BestExporterHook",
    "CheckpointHook",
    "EarlyStoppingHook",
    "EvaluationHook",
    "Every",
    "ExamplesPerSecondHook",
    "GradientNormHook",
    "Hook",
    "LoadCheckpoint",
    "LoggingHook",
    "NanHook",
    "PeriodicHook",
    "ProfilerHook",
    "ProgressBarHook",
    "StopAtStepHook",
    "StopAtTimeHook",
    "SummaryHook",
    "When",
]
