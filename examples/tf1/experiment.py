"""A program for a cluster of 2017: `learn_runner.run` with a model_fn of its own.

    phalanx run --tf1 --ps 2 --workers 2 examples/tf1/experiment.py --job-dir=/tmp/digits

It was written for TensorFlow 1.4 and does not know Phalanx. The master trains, saves, and evaluates
between rounds; the workers train; the variables are on the parameter servers.
"""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow.contrib.learn.python.learn import learn_runner

CLASSES = 4


def read_data(num_examples, seed):
    """Points around the corners of a square, with the number of the corner as the label."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, CLASSES, num_examples).astype(np.int32)
    centers = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float32)
    points = centers[labels] + 0.4 * random.randn(num_examples, 2)
    return points.astype(np.float32), labels


def make_input_fn(num_examples, seed, batch_size, is_training):
    def input_fn():
        points, labels = read_data(num_examples, seed)
        dataset = tf.contrib.data.Dataset.from_tensor_slices((points, labels))
        if is_training:
            dataset = dataset.shuffle(buffer_size=num_examples).repeat()
        dataset = dataset.map(
            lambda point, label: ({"point": point}, label), num_threads=2, output_buffer_size=100
        )
        iterator = dataset.batch(batch_size).make_one_shot_iterator()
        return iterator.get_next()

    return input_fn


class ExamplesPerSecondHook(tf.train.SessionRunHook):
    """Counts the steps that this task has run."""

    def begin(self):
        self.runs = 0

    def after_run(self, run_context, run_values):
        self.runs += 1

    def end(self, session):
        print("this task has run %d steps" % self.runs)


def make_model_fn(num_workers):
    def model_fn(features, labels, mode, params):
        hidden = tf.layers.dense(features["point"], params.hidden, activation=tf.nn.relu)
        logits = tf.layers.dense(hidden, CLASSES)
        predictions = {
            "classes": tf.argmax(logits, axis=1),
            "probabilities": tf.nn.softmax(logits),
        }
        if mode == tf.estimator.ModeKeys.PREDICT:
            outputs = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
            return tf.estimator.EstimatorSpec(mode, predictions, export_outputs=outputs)
        loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
        accuracy = tf.metrics.accuracy(labels, predictions["classes"])
        if mode == tf.estimator.ModeKeys.EVAL:
            return tf.estimator.EstimatorSpec(
                mode, predictions, loss, eval_metric_ops={"accuracy": accuracy}
            )
        global_step = tf.train.get_global_step()
        rate = tf.train.exponential_decay(params.learning_rate, global_step, 500, 0.9)
        tf.summary.scalar("learning_rate", rate)
        tf.summary.histogram("logits", logits)
        optimizer = tf.train.MomentumOptimizer(rate, 0.9)
        hooks = [ExamplesPerSecondHook()]
        chief_hooks = []
        if params.sync:
            optimizer = tf.train.SyncReplicasOptimizer(
                optimizer, replicas_to_aggregate=num_workers, total_num_replicas=num_workers
            )
            hooks.append(optimizer.make_session_run_hook(params.is_chief))
        train_op = optimizer.minimize(loss, global_step=global_step)
        return tf.estimator.EstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op,
            training_hooks=hooks,
            training_chief_hooks=chief_hooks,
        )

    return model_fn


def get_experiment_fn(batch_size, train_steps):
    def experiment_fn(run_config, hparams):
        hparams.add_hparam("is_chief", run_config.is_chief)
        estimator = tf.estimator.Estimator(
            model_fn=make_model_fn(run_config.num_worker_replicas),
            config=run_config,
            params=hparams,
        )
        return tf.contrib.learn.Experiment(
            estimator,
            train_input_fn=make_input_fn(2000, run_config.task_id, batch_size, True),
            eval_input_fn=make_input_fn(500, 99, 100, False),
            train_steps=train_steps,
            eval_steps=5,
            min_eval_frequency=1,
        )

    return experiment_fn


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--train-steps", type=int, default=400)
    parser.add_argument("--train-batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--save-checkpoints-steps", type=int, default=200)
    parser.add_argument("--sync", action="store_true")
    args = parser.parse_args()

    tf.logging.set_verbosity(tf.logging.INFO)
    config = tf.contrib.learn.RunConfig(
        model_dir=args.job_dir,
        save_checkpoints_steps=args.save_checkpoints_steps,
        log_step_count_steps=100,
    )
    hparams = tf.contrib.training.HParams(
        hidden=16, learning_rate=args.learning_rate, sync=args.sync
    )
    result = learn_runner.run(
        get_experiment_fn(args.train_batch_size, args.train_steps),
        run_config=config,
        hparams=hparams,
    )
    if config.is_chief:
        print("accuracy at step %(global_step)d: %(accuracy).3f" % result[0])


if __name__ == "__main__":
    main()
