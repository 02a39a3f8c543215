"""Uses the smaller parts of TensorFlow 1, and prints a line for each."""

import importlib
import sys

import keras
import numpy as np
import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data
from tensorflow.python import pywrap_tensorflow
from tensorflow.python.framework import device, graph_util, ops
from tensorflow.python.ops import control_flow_ops

points = np.random.RandomState(0).randn(500, 4).astype(np.float32)
sides = (points.sum(1) > 0).astype(np.int64)


def try_keras(model_dir):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, activation="relu", input_shape=(4,), name="first"),
            tf.keras.layers.Dense(2, activation="softmax", name="second"),
        ]
    )
    name = model.input_names[0]
    train = tf.estimator.inputs.numpy_input_fn(
        {name: points}, sides, batch_size=32, num_epochs=None, shuffle=True
    )
    for optimizer in (tf.keras.optimizers.Adam(0.01), tf.train.AdamOptimizer(0.01)):
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        directory = "%s-%s" % (model_dir, type(optimizer).__name__)
        estimator = tf.keras.estimator.model_to_estimator(model, model_dir=directory)
        estimator.train(train, steps=300)
        metrics = estimator.evaluate(
            tf.estimator.inputs.numpy_input_fn({name: points}, sides, shuffle=False)
        )
        print("keras", keras.__name__, metrics["acc"] > 0.9)
    try:
        tf.estimator.model_to_estimator(object())
    except Exception as error:
        print(error)
    try:
        importlib.import_module("keras").layers.Dense(2)(tf.ones([1, 3]))
    except Exception as error:
        print(error)


def try_moved_names():
    spec = device.DeviceSpec.from_string("/cpu:1")
    spec.merge_from(device.DeviceSpec.from_string("/job:worker"))
    tf.reset_default_graph()
    weight = tf.get_variable("weight", [])
    value = control_flow_ops.cond(weight > 0, lambda: weight + 1, lambda: 2.0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        frozen = graph_util.convert_variables_to_constants(
            session, session.graph_def, [value.op.name]
        )
        path = tf.train.Saver(save_relative_paths=True).save(session, sys.argv[1] + "-moved")
    names = pywrap_tensorflow.NewCheckpointReader(path).get_variable_to_shape_map()
    variables = [node for node in frozen.node if node.op.startswith("Var")]
    print("moved", spec.to_string(), isinstance(value, ops.Tensor), variables, sorted(names))


def try_datasets():
    dataset = tf.contrib.data.Dataset.range(10)
    dataset = dataset.map(lambda x: x * 2, num_threads=2, output_buffer_size=4)
    dataset = dataset.filter(lambda x: x > 4).map(lambda x: x + 1, num_threads=2).batch(3)
    following = dataset.make_one_shot_iterator().get_next()
    with tf.Session() as session:
        print("data", session.run(following), session.run(following))


def try_layers():
    with tf.Graph().as_default(), tf.Session() as session:
        images = tf.ones([2, 8, 8, 3])
        x = tf.contrib.layers.conv2d(
            images, 4, 3, normalizer_fn=tf.contrib.layers.batch_norm, scope="first"
        )
        x = tf.contrib.layers.flatten(tf.contrib.layers.max_pool2d(x, 2))
        loss = tf.reduce_mean(tf.contrib.layers.fully_connected(x, 2, activation_fn=None))
        step = tf.contrib.framework.get_or_create_global_step()
        train = tf.contrib.layers.optimize_loss(loss, step, 0.1, "SGD", clip_gradients=1.0)
        session.run(tf.global_variables_initializer())
        session.run(train)
        print("layers", x.shape, session.run(step))


def try_mnist():
    mnist = input_data.read_data_sets("unused", fake_data=True, one_hot=True)
    images, labels = mnist.train.next_batch(5)
    print("mnist", images.shape, labels.shape, mnist.train.num_examples)


if __name__ == "__main__":
    try_keras(sys.argv[1])
    try_moved_names()
    try_datasets()
    try_layers()
    try_mnist()
