"""Hooks: code that a session calls before, during and after the training loop."""

from phalanx.train.hooks.base import ActionHook, At, Every, Hook, PeriodicHook, When
from phalanx.train.hooks.keras_callbacks import CallbackHook
from phalanx.train.hooks.model import (
    BestExporterHook,
    CheckpointHook,
    EvaluationHook,
    LoadCheckpoint,
)
from phalanx.train.hooks.reporting import (
    ExamplesPerSecondHook,
    GradientNormHook,
    LoggingHook,
    ProfilerHook,
    ProgressBarHook,
    SummaryHook,
)
from phalanx.train.hooks.stopping import EarlyStoppingHook, NanHook, StopAtStepHook, StopAtTimeHook
from phalanx.train.hooks.stragglers import StragglerHook
from phalanx.train.hooks.tracking import HParamsHook, MLflowHook, TrackerHook, WandbHook

__all__ = [
    "ActionHook",
    "At",
    "BestExporterHook",
    "CallbackHook",
    "CheckpointHook",
    "EarlyStoppingHook",
    "EvaluationHook",
    "Every",
    "ExamplesPerSecondHook",
    "GradientNormHook",
    "HParamsHook",
    "Hook",
    "LoadCheckpoint",
    "LoggingHook",
    "MLflowHook",
    "NanHook",
    "PeriodicHook",
    "ProfilerHook",
    "ProgressBarHook",
    "StopAtStepHook",
    "StopAtTimeHook",
    "StragglerHook",
    "SummaryHook",
    "TrackerHook",
    "WandbHook",
    "When",
]
