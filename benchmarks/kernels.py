"""Where the time of a training step of ResNet-44 goes: the kernels of TensorFlow, by kind of layer.

One process with one thread computes the gradients of 64 images, as a worker of `cifar10.py` does.
TensorFlow traces each kernel. The figures compare the step with the time that the same core would
need if all convolutions were one large matrix product, and nothing else took any time.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

BATCH, LAYERS = 64, 44
WARM_UP, STEPS = 3, 10
GOAL = 0.85

# The kernels of each kind, without the prefixes and versions of their names.
KINDS = {
    "convolution, forward": {"Conv2D"},
    "convolution, gradient of input": {"Conv2DBackpropInput"},
    "convolution, gradient of kernel": {"Conv2DBackpropFilter"},
    "batch normalization": {"BatchNorm", "BatchNormEx", "BatchNormGrad", "Mean", "Rsqrt"},
    "activation and addition": {"Relu", "ReluGrad", "Add", "AddN"},
    "dense layer and loss": {"MatMul", "BiasAdd", "SparseSoftmaxCrossEntropyWithLogits"},
    "flat buffers": {"Split", "Concat", "Reshape"},
}


def trace(dtype: str) -> tuple[dict[str, float], dict[str, set[str]], float]:
    """Return the milliseconds of each kind, its kernels, and the operations of the convolutions."""
    import keras
    import numpy as np
    import tensorflow as tf

    import phalanx
    from phalanx.models.resnet import resnet
    from phalanx.train.step.step_function import StepFunction
    from phalanx.train.variables.clipping import Clipping
    from phalanx.train.variables.device_variables import DeviceVariables

    keras.config.set_dtype_policy("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    network = resnet(LAYERS, weight_decay=0.0)
    images = np.random.default_rng(0).normal(size=(BATCH, 32, 32, 3)).astype("float32")
    labels = np.arange(BATCH) % 10
    experiment = phalanx.Experiment(
        model=lambda: network,
        train_data=lambda context: tf.data.Dataset.from_tensors((images, labels)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    )
    context = phalanx.Context(batch_size=BATCH, global_batch_size=BATCH)
    step = StepFunction(experiment, context)
    step.build(tf.data.Dataset.from_tensors((images, labels)).element_spec)
    variables = DeviceVariables.place(step.make_host_variables(), ["/device:CPU:0"], Clipping())
    variables.push()
    inputs = [*variables.read(), *variables.read_state(), images, labels]
    count = len(variables.read())

    def compute(*values: Any) -> list[Any]:
        *state, pictures, classes = values[count:]
        result = step.train(variables, values[:count], state, (pictures, classes), 0, 0)
        return [*result.gradients, *result.state, result.report]

    specs = [tf.TensorSpec(value.shape, value.dtype) for value in map(tf.convert_to_tensor, inputs)]
    concrete = tf.function(compute).get_concrete_function(*specs)
    names = [tensor.name for tensor in concrete.inputs[: len(inputs)]]
    outputs = [tensor.name for tensor in concrete.outputs]
    arrays = [np.asarray(value) for value in inputs]
    milliseconds: dict[str, list[float]] = defaultdict(list)
    kernels: dict[str, set[str]] = defaultdict(set)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(concrete.graph.as_graph_def(), name="")
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
        )
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            run = session.make_callable(outputs, feed_list=names, accept_options=True)
            for number in range(WARM_UP + STEPS):
                metadata = tf.compat.v1.RunMetadata()
                run(*arrays, options=options, run_metadata=metadata)
                if number < WARM_UP:
                    continue
                seconds: dict[str, float] = defaultdict(float)
                for device in metadata.step_stats.dev_stats:
                    for node in device.node_stats:
                        kernel = node.timeline_label.partition(" = ")[2].partition("(")[0]
                        kind = find_kind(kernel)
                        spent = node.op_end_rel_micros - node.op_start_rel_micros
                        seconds[kind] += spent / 1000
                        if spent > 50:
                            kernels[kind].add(kernel)
                for kind in [*KINDS, "other"]:
                    milliseconds[kind].append(seconds[kind])
    return (
        {kind: statistics.median(values) for kind, values in milliseconds.items()},
        kernels,
        count_operations(network),
    )


def find_kind(kernel: str) -> str:
    plain = re.sub(r"^_?(Mkl)?(Native)?(Fused)?|V\d$", "", kernel)
    return next((kind for kind, kernels in KINDS.items() if plain in kernels), "other")


def count_operations(network: Any) -> float:
    """Return the operations of all convolutions of a step, forward and backward."""
    convolutions = [layer for layer in network.layers if layer.name.endswith("_conv")]
    pixels = [layer.output.shape[1] * layer.output.shape[2] for layer in convolutions]
    weights = [layer.count_params() for layer in convolutions]
    # A multiplication and an addition each; the backward pass has twice as many.
    return float(6 * BATCH * sum(map(math.prod, zip(pixels, weights, strict=True))))


def measure_matrix_product(dtype: str) -> float:
    """Return the operations per second of a large matrix product."""
    import tensorflow as tf

    size = 1024
    square = tf.cast(tf.random.normal((size, size)), dtype)
    multiply: Callable[[], Any] = tf.function(lambda: tf.reduce_max(square @ square))
    times = []
    for _ in range(20):
        started = time.perf_counter()
        multiply().numpy()
        times.append(time.perf_counter() - started)
    return 2 * size**3 / statistics.median(times)


def main() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    results = []
    for dtype in ("float32", "bfloat16"):
        milliseconds, kernels, operations = trace(dtype)
        total = sum(milliseconds.values())
        print(f"{dtype}: {total:.0f} ms for the gradients of {BATCH} images")
        for kind, spent in milliseconds.items():
            names = ", ".join(sorted(kernels[kind]))
            print(f"  {kind:32}{spent:8.1f} ms{spent / total:7.1%}  {names}")
        bound = 1000 * operations / measure_matrix_product(dtype)
        print(f"  {'convolutions as matrix products':32}{bound:8.1f} ms{bound / total:7.1%}")
        results.append((dtype, bound / total))
    for dtype, ratio in results:
        print(f"RESULT resnet44_step_vs_matrix_products_{dtype} {ratio:.2f} x goal >= {GOAL}")


if __name__ == "__main__":
    main()
