"""tf.contrib.learn.utils."""

from phalanx.compat.tf1.contrib.learn.export_strategy import make_export_strategy
from phalanx.compat.tf1.contrib.learn.models import InputFnOps
from phalanx.compat.tf1.estimator.export import (
    build_parsing_serving_input_receiver_fn as build_parsing_serving_input_fn,
)
from phalanx.compat.tf1.estimator.export import (
    build_raw_serving_input_receiver_fn as build_default_serving_input_fn,
)

__all__ = [
    "InputFnOps",
    "build_default_serving_input_fn",
    "build_parsing_serving_input_fn",
    "make_export_strategy",
]
