"""tf.estimator: the estimators of TensorFlow 1.

from phalanx.compat.tf1 import estimator

model = estimator.Estimator(model_fn, "runs/model", params={"rate": 0.1})
model.train(input_fn, max_steps=1000)
"""

import tensorflow.compat.v1 as _tf

from phalanx.compat.tf1.estimator import export, inputs
from phalanx.compat.tf1.estimator.added_metrics import add_metrics
from phalanx.compat.tf1.estimator.canned.estimators import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
)
from phalanx.compat.tf1.estimator.canned.heads import (
    BinaryClassHead,
    Head,
    MultiClassHead,
    RegressionHead,
)
from phalanx.compat.tf1.estimator.canned.parse_specs import (
    classifier_parse_example_spec,
    regressor_parse_example_spec,
)
from phalanx.compat.tf1.estimator.estimator import Estimator
from phalanx.compat.tf1.estimator.exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)
from phalanx.compat.tf1.estimator.keras_model import model_to_estimator
from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.compat.tf1.estimator.specs import (
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    TrainSpec,
    WarmStartSettings,
)
from phalanx.compat.tf1.estimator.training import train_and_evaluate

# Programs of 2019 took the hooks from here.
CheckpointSaverHook = _tf.train.CheckpointSaverHook
CheckpointSaverListener = _tf.train.CheckpointSaverListener
FeedFnHook = _tf.train.FeedFnHook
FinalOpsHook = _tf.train.FinalOpsHook
GlobalStepWaiterHook = _tf.train.GlobalStepWaiterHook
LoggingTensorHook = _tf.train.LoggingTensorHook
NanLossDuringTrainingError = _tf.train.NanLossDuringTrainingError
NanTensorHook = _tf.train.NanTensorHook
ProfilerHook = _tf.train.ProfilerHook
SecondOrStepTimer = _tf.train.SecondOrStepTimer
SessionRunArgs = _tf.train.SessionRunArgs
SessionRunContext = _tf.train.SessionRunContext
SessionRunHook = _tf.train.SessionRunHook
SessionRunValues = _tf.train.SessionRunValues
StepCounterHook = _tf.train.StepCounterHook
StopAtStepHook = _tf.train.StopAtStepHook
SummarySaverHook = _tf.train.SummarySaverHook
VocabInfo = _tf.train.VocabInfo

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "BestExporter",
    "BinaryClassHead",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FeedFnHook",
    "FinalExporter",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "Head",
    "LatestExporter",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "LoggingTensorHook",
    "ModeKeys",
    "MultiClassHead",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "RegressionHead",
    "RunConfig",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "add_metrics",
    "classifier_parse_example_spec",
    "export",
    "inputs",
    "model_to_estimator",
    "regressor_parse_example_spec",
    "train_and_evaluate",
]
