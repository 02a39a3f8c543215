"""tf.contrib.layers: the functions that programs used most, over tf.layers."""

from phalanx.compat.tf1.contrib.layers import utils
from phalanx.compat.tf1.contrib.layers.core import (
    conv2d,
    conv2d_transpose,
    fully_connected,
    separable_conv2d,
)
from phalanx.compat.tf1.contrib.layers.feature_column import (
    bucketized_column,
    crossed_column,
    embedding_column,
    one_hot_column,
    real_valued_column,
    sparse_column_with_hash_bucket,
    sparse_column_with_integerized_feature,
    sparse_column_with_keys,
)
from phalanx.compat.tf1.contrib.layers.initializers import (
    variance_scaling_initializer,
    xavier_initializer,
    xavier_initializer_conv2d,
)
from phalanx.compat.tf1.contrib.layers.normalization import (
    batch_norm,
    layer_norm,
)
from phalanx.compat.tf1.contrib.layers.optimizers import (
    optimize_loss,
)
from phalanx.compat.tf1.contrib.layers.regularizers import (
    apply_regularization,
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
    sum_regularizer,
)
from phalanx.compat.tf1.contrib.layers.stateless import (
    avg_pool2d,
    dropout,
    elu,
    embed_sequence,
    flatten,
    linear,
    max_pool2d,
    one_hot_encoding,
    relu,
    relu6,
    repeat,
    softmax,
    stack,
    summarize_activation,
    summarize_tensor,
)

convolution = convolution2d = conv2d
convolution2d_transpose = conv2d_transpose
separable_convolution2d = separable_conv2d

__all__ = [
    "apply_regularization",
    "avg_pool2d",
    "batch_norm",
    "bucketized_column",
    "conv2d",
    "conv2d_transpose",
    "convolution",
    "convolution2d",
    "convolution2d_transpose",
    "crossed_column",
    "dropout",
    "elu",
    "embed_sequence",
    "embedding_column",
    "flatten",
    "fully_connected",
    "l1_l2_regularizer",
    "l1_regularizer",
    "l2_regularizer",
    "layer_norm",
    "linear",
    "max_pool2d",
    "one_hot_column",
    "one_hot_encoding",
    "optimize_loss",
    "real_valued_column",
    "relu",
    "relu6",
    "repeat",
    "separable_conv2d",
    "separable_convolution2d",
    "softmax",
    "sparse_column_with_hash_bucket",
    "sparse_column_with_integerized_feature",
    "sparse_column_with_keys",
    "stack",
    "sum_regularizer",
    "summarize_activation",
    "summarize_tensor",
    "utils",
    "variance_scaling_initializer",
    "xavier_initializer",
    "xavier_initializer_conv2d",
]
