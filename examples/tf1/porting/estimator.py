"""Stage 1: a TensorFlow 1 program as it was written, with `tf.estimator`.

python -m phalanx.compat.tf1 examples/tf1/porting/estimator.py --model_dir=runs/estimator
phalanx run --tf1 --ps 1 --workers 2 examples/tf1/porting/estimator.py --model_dir=runs/cluster
"""

import digits
import tensorflow as tf

tf.flags.DEFINE_string("model_dir", "runs/estimator", "Where to save.")
tf.flags.DEFINE_integer("train_steps", 1000, "When to stop.")
FLAGS = tf.flags.FLAGS


def model_fn(features, labels, mode, params):
    hidden = tf.layers.dense(features, params["units"], tf.nn.relu, name="hidden")
    logits = tf.layers.dense(hidden, digits.CLASSES, name="logits")
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = tf.train.AdamOptimizer(params["rate"])
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    metrics = {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def train_input_fn():
    return tf.data.Dataset.from_tensor_slices(digits.read("train")).shuffle(6000).repeat().batch(60)


def test_input_fn():
    return tf.data.Dataset.from_tensor_slices(digits.read("test")).batch(100)


def main(_):
    estimator = tf.estimator.Estimator(
        model_fn, FLAGS.model_dir, params={"units": 32, "rate": 0.001}
    )
    train = tf.estimator.TrainSpec(train_input_fn, max_steps=FLAGS.train_steps)
    test = tf.estimator.EvalSpec(test_input_fn, steps=None)
    result = tf.estimator.train_and_evaluate(estimator, train, test)
    if result and result[0]:
        print(f"accuracy {result[0]['accuracy']:.4f}")


if __name__ == "__main__":
    tf.app.run()
