"""The linear regression of the tests of tf.estimator."""

from tests.compat.tf1.estimator.conftest import (
    eval_input,
    make_estimator,
    single_process,
    train_input,
)

__all__ = ["eval_input", "make_estimator", "single_process", "train_input"]
