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

VocabInfo = _tf.train.VocabInfo

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "BestExporter",
    "BinaryClassHead",
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
    "FinalExporter",
    "Head",
    "LatestExporter",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "ModeKeys",
    "MultiClassHead",
    "RegressionHead",
    "RunConfig",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "add_metrics",
    "export",
    "inputs",
    "model_to_estimator",
    "train_and_evaluate",
]
