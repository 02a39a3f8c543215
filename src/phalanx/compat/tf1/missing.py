"""What TensorFlow 1 had and Phalanx does not provide, by name, with its replacement."""

from collections.abc import Mapping

CONTRIB: Mapping[str, str] = {
    "batching": "use tf.nondifferentiable_batch_function",
    "bayesflow": "use TensorFlow Probability",
    "boosted_trees": "use TensorFlow Decision Forests",
    "cluster_resolver": "use tf.distribute.cluster_resolver",
    "crf": "write the layer yourself: TensorFlow 2 has none",
    "cudnn_rnn": "use tf.keras.layers.LSTM or GRU, which use cuDNN by themselves",
    "distributions": "use TensorFlow Probability",
    "eager": "run the program without --tf1: TensorFlow 2 is eager",
    "factorization": "use scikit-learn, or an Embedding of your own",
    "gan": "use TF-GAN, or a training step of your own",
    "image": "use tf.image",
    "kfac": "use another optimizer of tf.train",
    "keras": "use tf.keras",
    "lite": "use tf.lite",
    "metrics": "use tf.metrics",
    "opt": "use an optimizer of tf.train or tf.keras.optimizers",
    "predictor": "use tf.saved_model.loader, or phalanx predict on the export",
    "quantize": "use the TensorFlow Model Optimization toolkit",
    "estimator.InMemoryEvaluatorHook": "use tf.estimator.train_and_evaluate",
    "learn.DNN": "use the estimator of this name in tf.estimator",
    "learn.Linear": "use the estimator of this name in tf.estimator",
    "learn.datasets": "load the data with scikit-learn or tf.keras.datasets",
    "learn.infer_real_valued_columns": "use tf.feature_column.numeric_column",
    "learn.monitors": "use a tf.train.SessionRunHook",
    "learn.preprocessing": "use tf.keras.preprocessing",
    "legacy_seq2seq": "use tf.nn.dynamic_rnn",
    "rnn": "use tf.nn.rnn_cell and tf.nn.dynamic_rnn",
    "saved_model": "use tf.saved_model",
    "seq2seq": "use tf.nn.dynamic_rnn or tf.while_loop",
    "slim": "use tf.layers",
    "slim.dataset": "use tf.data",
    "slim.nets": "use tf.keras.applications, or put the source of the network beside the program",
    "slim.python.slim.nets": (
        "use tf.keras.applications, or put the source of the network beside the program"
    ),
    "slim.tfexample_decoder": "use tf.data and tf.parse_single_example",
    "summary": "use tf.summary",
    "tensor_forest": "use TensorFlow Decision Forests",
    "tensorrt": "use tf.experimental.tensorrt",
    "tpu": "use tf.estimator.Estimator; TPUs are not supported",
    "tpu.TPUEstimator": "use tf.estimator.Estimator",
    "training.bucket": "use tf.data.experimental.bucket_by_sequence_length",
    "util": "use tf.make_tensor_proto, tf.make_ndarray or tf.get_static_value",
}
"""Parts of tf.contrib, with what to use instead."""

ESTIMATOR: Mapping[str, str] = {
    "BoostedTrees": "use TensorFlow Decision Forests",
    "experimental.InMemoryEvaluatorHook": "use tf.estimator.train_and_evaluate",
    "tpu": "use tf.estimator.Estimator; TPUs are not supported",
}
"""Beginnings of names in tf.estimator, with what to use instead."""

PRIVATE: Mapping[str, str] = {
    "eager.context.in_graph_mode": "use tf.executing_eagerly",
    "keras.": "use tf.keras",
    "layers.normalization": "use tf.layers",
    "ops.seq2seq": "use tf.nn.dynamic_rnn",
}
"""Beginnings of names in tensorflow.python that are gone, with the public names."""

OLD: Mapping[str, str] = {
    "all_variables": "use tf.global_variables",
    "audio_summary": "use tf.summary.audio",
    "batch_matmul": "use tf.matmul",
    "complex_abs": "use tf.abs",
    "concat_v2": "use tf.concat",
    "histogram_summary": "use tf.summary.histogram",
    "image_summary": "use tf.summary.image",
    "initialize_variables": "use tf.variables_initializer",
    "inv": "use tf.reciprocal",
    "listdiff": "use tf.setdiff1d",
    "merge_all_summaries": "use tf.summary.merge_all",
    "merge_summary": "use tf.summary.merge",
    "mul": "use tf.multiply",
    "neg": "use tf.negative",
    "pack": "use tf.stack",
    "scalar_summary": "use tf.summary.scalar",
    "select": "use tf.where",
    "split_v": "use tf.split",
    "sub": "use tf.subtract",
    "train.SummaryWriter": "use tf.summary.FileWriter",
    "unpack": "use tf.unstack",
}
"""Names that were removed before TensorFlow 1.0 or soon after, with what to use instead."""

TOSTRING = "numpy.ndarray.tostring"
"""The one name of NumPy that programs of the time used and that cannot be given back to them."""

_ROOTS = {
    "tensorflow.contrib.": CONTRIB,
    "tensorflow.estimator.": ESTIMATOR,
    "tensorflow.python.": PRIVATE,
}


def describe_missing(name: str) -> str:
    """Say that a TensorFlow 1 name is not provided, and what replaces it if that is known.

    >>> describe_missing("tensorflow.contrib.tpu.TPUEstimator")
    'tf.contrib.tpu.TPUEstimator is not provided under --tf1: use tf.estimator.Estimator'
    """
    if name == TOSTRING:
        return (
            "ndarray.tostring is not in NumPy 2.3: write tobytes() instead, or "
            "pip install 'numpy<2.3'"
        )
    if name.startswith("tensorlayer."):
        return (
            f"{name} is not provided under --tf1, which has only tensorlayer.distributed: use "
            "tf.layers, or put TensorLayer 1 beside the program"
        )
    short = "tf." + name.removeprefix("tensorflow.")
    text = f"{short} is not provided under --tf1"
    for root, table in _ROOTS.items():
        if name.startswith(root):
            rest = name.removeprefix(root)
            found = [each for each in table if rest.startswith(each)]
            if found:
                return f"{text}: {table[max(found, key=len)]}"
    if short.removeprefix("tf.") in OLD:
        return f"{text}: {OLD[short.removeprefix('tf.')]}"
    return f"{text}, and TensorFlow 2.21 has no such name: see docs/guide/tf1.md for what there is"


def describe_newer(name: str) -> str:
    """Say that a name is one of TensorFlow 2.

    >>> describe_newer("tensorflow.math.top_k")  # doctest: +ELLIPSIS
    'tf.math.top_k is a name of TensorFlow 2, and under --tf1 ... write tf.compat.v2.math.top_k'
    """
    short = name.removeprefix("tensorflow.")
    return (
        f"tf.{short} is a name of TensorFlow 2, and under --tf1 the program sees the names of "
        f"TensorFlow 1: run it without --tf1, or write tf.compat.v2.{short}"
    )
