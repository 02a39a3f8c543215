"""tf.contrib.estimator: heads, and metrics that are added to an estimator."""

from phalanx.compat.tf1.estimator.added_metrics import add_metrics
from phalanx.compat.tf1.estimator.canned.estimators import (
    DNNEstimator,
    DNNLinearCombinedEstimator,
    LinearEstimator,
)
from phalanx.compat.tf1.estimator.canned.heads import (
    BinaryClassHead as binary_classification_head,  # noqa: N813 - the names of functions
)
from phalanx.compat.tf1.estimator.canned.heads import MultiClassHead as multi_class_head  # noqa: N813
from phalanx.compat.tf1.estimator.canned.heads import RegressionHead as regression_head  # noqa: N813
from phalanx.compat.tf1.estimator.experimental import (
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)

__all__ = [
    "DNNEstimator",
    "DNNLinearCombinedEstimator",
    "LinearEstimator",
    "add_metrics",
    "binary_classification_head",
    "make_early_stopping_hook",
    "multi_class_head",
    "regression_head",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
