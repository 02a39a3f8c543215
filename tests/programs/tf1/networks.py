"""Builds networks with slim, contrib.layers and contrib.rnn, and prints a line for each."""

import sys

import numpy as np
import tensorflow as tf
from tensorflow.contrib import layers, rnn, slim
from tensorflow.contrib.framework.python.ops import add_arg_scope
from tensorflow.contrib.tensorboard.plugins import projector
from tensorflow.examples.tutorials.mnist import mnist

labels = np.arange(40) % 2
images = np.random.RandomState(0).rand(40, 6, 6, 1) + labels[:, None, None, None]
images = images.astype(np.float32)


def set_arguments(is_training):
    norm = {"is_training": is_training, "decay": 0.5}
    with (
        slim.arg_scope(
            [slim.conv2d, slim.fully_connected],
            weights_regularizer=slim.l2_regularizer(1e-4),
            normalizer_fn=slim.batch_norm,
        ),
        slim.arg_scope([slim.batch_norm], **norm) as scope,
    ):
        return scope


def build(is_training):
    with slim.arg_scope(set_arguments(is_training)), tf.variable_scope("net") as scope:
        ends = scope.name + "_ends"
        with slim.arg_scope(
            [slim.conv2d, slim.max_pool2d, slim.fully_connected], outputs_collections=ends
        ):
            x = slim.repeat(tf.constant(images), 2, slim.conv2d, 4, 3, scope="conv")
            x = slim.flatten(slim.max_pool2d(x, 2, scope="pool"))
            logits = slim.fully_connected(
                x, 2, activation_fn=None, normalizer_fn=None, scope="logits"
            )
    return logits, slim.utils.convert_collection_to_dict(ends)


def try_slim(logdir):
    with tf.Graph().as_default():
        logits, ends = build(is_training=True)
        print("slim variables", [each.op.name for each in slim.get_model_variables()])
        print("slim outputs", sorted(ends))
        tf.losses.sparse_softmax_cross_entropy(labels, logits)
        train = slim.learning.create_train_op(
            tf.losses.get_total_loss(), tf.train.AdamOptimizer(0.05), clip_gradient_norm=5
        )
        slim.learning.train(train, logdir, number_of_steps=40, startup_delay_steps=2)
    path = tf.train.latest_checkpoint(logdir)
    with tf.Graph().as_default():
        logits, _ = build(is_training=False)
        values, updates = slim.metrics.aggregate_metric_map(
            {"accuracy": slim.metrics.streaming_accuracy(tf.argmax(logits, 1), labels)}
        )
        accuracy = slim.evaluation.evaluate_once(
            "",
            path,
            logdir + "/eval",
            eval_op=list(updates.values()),
            final_op=values["accuracy"],
            variables_to_restore=slim.get_variables_to_restore(),
        )
    with tf.Graph().as_default(), tf.Session() as session:
        logits, _ = build(is_training=False)
        slim.assign_from_checkpoint_fn(path, slim.get_model_variables("net"))(session)
        correct = np.mean(session.run(logits).argmax(1) == labels)
        print("slim accuracy %.1f, restored %s" % (accuracy, correct == accuracy))


@add_arg_scope
def normalize(inputs, scale=False, scope=None):
    return layers.layer_norm(inputs, scale=scale, scope=scope)


def try_layers():
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.contrib.framework.arg_scope([normalize], scale=True):
            x = layers.separable_conv2d(tf.constant(images[:2]), 3, 3, biases_initializer=None,
                                        scope="separable")  # fmt: skip
            x = normalize(x, scope="norm")
        x = layers.linear(layers.flatten(x), 4, biases_initializer=None, scope="plain")
        x = layers.stack(x, layers.fully_connected, [5, 3], scope="stack")
        session.run(tf.global_variables_initializer())
        print("layers", [each.op.name for each in tf.global_variables()], session.run(x).shape)


def try_rnn():
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = tf.ones([2, 5, 3])
        cell = rnn.MultiRNNCell([rnn.DropoutWrapper(rnn.BasicLSTMCell(8)) for _ in range(2)])
        static, _ = rnn.static_rnn(cell, tf.unstack(inputs, axis=1), dtype=tf.float32)
        both, _, _ = rnn.stack_bidirectional_dynamic_rnn(
            [rnn.GRUCell(4)], [rnn.LSTMCell(4)], inputs, dtype=tf.float32
        )
        logits, targets, weights = both, tf.zeros([2, 5], tf.int32), tf.ones([2, 5])
        apart = tf.contrib.seq2seq.sequence_loss(
            logits, targets, weights, average_across_timesteps=False, average_across_batch=False
        )
        mean = tf.contrib.seq2seq.sequence_loss(logits, targets, weights)
        steps = [tf.unstack(each, axis=1) for each in (logits, targets, weights)]
        legacy = tf.contrib.legacy_seq2seq.sequence_loss(*steps)
        session.run(tf.global_variables_initializer())
        print("rnn", *(value.shape for value in session.run([static[-1], both, apart])))
        values = session.run([tf.reduce_mean(apart), mean, legacy])
        print("sequence loss", np.allclose(values, values[0]))


def try_numpy(logdir):
    from numpy import float_

    table = np.zeros(2, dtype=np.int).dtype, np.array([1], np.float).dtype
    with tf.summary.FileWriter(logdir) as writer:
        config = projector.ProjectorConfig()
        config.embeddings.add().tensor_name = "table"
        projector.visualize_embeddings(writer, config)
    written = tf.gfile.Exists(logdir + "/projector_config.pbtxt")
    print("numpy", *table, float_ is np.float64, written)


def try_nest():
    print("nest", tf.contrib.framework.nest.flatten({"a": [1, (2, 3)]}))


def try_digits():
    with tf.Graph().as_default():
        logits = mnist.inference(tf.zeros([3, mnist.IMAGE_PIXELS]), 8, 4)
        mnist.training(mnist.loss(logits, tf.zeros([3], tf.int32)), 0.1)
        mnist.evaluation(logits, tf.zeros([3], tf.int32))
        print("digits", [each.op.name for each in tf.trainable_variables()])


def try_queue():
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.contrib.lookup.index_table_from_tensor(tf.constant(["a", "b"]))
        queue = slim.prefetch_queue.prefetch_queue(
            {"word": table.lookup(tf.constant(["b"])), "x": tf.ones([1, 2])}, capacity=4
        )
        pairs = slim.prefetch_queue.prefetch_queue([tf.ones([3])], num_threads=2)
        batch = queue.dequeue()
        session.run(tf.tables_initializer())
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        print("queue", session.run([batch["word"], tf.shape(batch["x"]), pairs.dequeue()]))
        coordinator.request_stop()
        coordinator.join(threads)


def try_strategies(model_dir):
    cpu = tf.config.experimental.list_physical_devices("CPU")[0]
    two = [tf.config.experimental.VirtualDeviceConfiguration()] * 2
    tf.config.experimental.set_virtual_device_configuration(cpu, two)
    for strategy in (
        tf.contrib.distribute.MirroredStrategy(["/cpu:0"]),
        tf.contrib.distribute.ParameterServerStrategy(num_gpus_per_worker=0),
        tf.contrib.distribute.CollectiveAllReduceStrategy(num_gpus_per_worker=0),
        tf.contrib.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]),
    ):
        config = tf.estimator.RunConfig(train_distribute=strategy)
        try:
            tf.estimator.Estimator(lambda features: features, model_dir, config)
            print("strategy taken")
        except Exception as error:
            print(str(error).partition(":")[0])


def try_replicas(model_dir):
    """A network with the layers of the time, on two devices."""
    images = np.random.RandomState(0).rand(256, 8, 8, 1).astype(np.float32)
    labels = (images.mean(axis=(1, 2, 3)) > 0.5).astype(np.int32)

    def input_fn():
        return tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(16)

    def model_fn(features, labels, mode):
        is_training = mode == tf.estimator.ModeKeys.TRAIN
        net = tf.layers.conv2d(features, 8, 3, use_bias=False)
        net = tf.layers.batch_normalization(net, training=is_training, momentum=0.9)
        net = tf.layers.dropout(tf.nn.relu(net), 0.1, training=is_training)
        logits = tf.layers.dense(tf.layers.flatten(net), 2)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
        metrics = {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, axis=1))}
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
        )

    strategy = tf.contrib.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    config = tf.estimator.RunConfig(model_dir, train_distribute=strategy, eval_distribute=strategy)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    estimator.train(input_fn, max_steps=150)
    result = estimator.evaluate(input_fn, steps=8)
    print("replicas %d %s" % (result["global_step"], result["accuracy"] > 0.9))


if __name__ == "__main__":
    try_strategies(sys.argv[1])
    try_replicas(sys.argv[1] + "/replicas")
    try_slim(sys.argv[1])
    try_layers()
    try_rnn()
    try_numpy(sys.argv[1])
    try_nest()
    try_queue()
    try_digits()
