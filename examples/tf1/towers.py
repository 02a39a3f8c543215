"""A ResNet for small images, with a tower on each device of a task, as it was written in 2017.

    phalanx dataset synthetic --count 5000 --out /tmp/images --suffix tfrecords
    phalanx run --tf1 --ps 1 --workers 1 examples/tf1/towers.py \\
        --data_dir=/tmp/images --model_dir=/tmp/towers --num_towers=2 --sync=True

The gradients of the towers are averaged on each task, and with --sync those of all tasks are, too.
"""

import os
import time

import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("data_dir", "", "The directory of train.tfrecords and eval.tfrecords.")
flags.DEFINE_string("model_dir", "", "The directory of the model.")
flags.DEFINE_integer("num_layers", 20, "6n + 2.")
flags.DEFINE_integer("num_towers", 1, "The number of devices of a task.")
flags.DEFINE_integer("batch_size", 64, "The number of images in a step of a task.")
flags.DEFINE_integer("eval_batch_size", 100, "The number of images in a batch of evaluation.")
flags.DEFINE_integer("train_steps", 300, "The number of steps.")
flags.DEFINE_float("learning_rate", 0.05, "The learning rate.")
flags.DEFINE_float("weight_decay", 2e-4, "The weight decay.")
flags.DEFINE_boolean("sync", False, "Whether the tasks train synchronously.")
flags.DEFINE_boolean("run_experiment", False, "Whether to use learn_runner.run.")
FLAGS = flags.FLAGS

CLASSES = 10


def parse(serialized):
    features = tf.parse_single_example(
        serialized,
        features={
            "image": tf.FixedLenFeature([], tf.string),
            "label": tf.FixedLenFeature([], tf.int64),
        },
    )
    image = tf.decode_raw(features["image"], tf.uint8)
    image.set_shape([32 * 32 * 3])
    image = tf.cast(tf.transpose(tf.reshape(image, [3, 32, 32]), [1, 2, 0]), tf.float32)
    return image / 128.0 - 1.0, tf.cast(features["label"], tf.int32)


def input_fn(subset, num_towers, batch_size):
    """Return a list of features and a list of labels, one for each tower."""
    with tf.device("/cpu:0"):
        path = os.path.join(FLAGS.data_dir, subset + ".tfrecords")
        dataset = tf.contrib.data.TFRecordDataset([path])
        if subset == "train":
            dataset = dataset.shuffle(buffer_size=2000).repeat()
        dataset = dataset.map(parse, num_threads=2, output_buffer_size=2 * batch_size)
        images, labels = dataset.batch(batch_size).make_one_shot_iterator().get_next()
        if num_towers == 1:
            return [images], [labels]
        return tf.split(images, num_towers), tf.split(labels, num_towers)


class ResNet(object):
    def __init__(self, num_layers, is_training):
        self.units = (num_layers - 2) // 6
        self.is_training = is_training

    def conv(self, x, filters, stride):
        return tf.layers.conv2d(
            x,
            filters,
            3,
            strides=stride,
            padding="SAME",
            use_bias=False,
            kernel_initializer=tf.contrib.layers.variance_scaling_initializer(),
        )

    def norm(self, x):
        return tf.contrib.layers.batch_norm(
            x, decay=0.9, scale=True, epsilon=1e-5, is_training=self.is_training, fused=True
        )

    def unit(self, x, filters, stride):
        with tf.name_scope("unit"):
            shortcut = x
            if stride > 1:
                shortcut = tf.layers.average_pooling2d(x, stride, stride, padding="SAME")
                pad = (filters - x.shape[-1].value) // 2
                shortcut = tf.pad(shortcut, [[0, 0], [0, 0], [0, 0], [pad, pad]])
            x = tf.nn.relu(self.norm(self.conv(x, filters, stride)))
            x = self.norm(self.conv(x, filters, 1))
            return tf.nn.relu(x + shortcut)

    def __call__(self, x):
        x = tf.nn.relu(self.norm(self.conv(x, 16, 1)))
        for stage, filters in enumerate([16, 32, 64]):
            for number in range(self.units):
                x = self.unit(x, filters, 2 if stage > 0 and number == 0 else 1)
        return tf.layers.dense(tf.reduce_mean(x, [1, 2]), CLASSES)


def tower_fn(images, labels, is_training):
    """Return loss, gradients and predictions of one tower."""
    logits = ResNet(FLAGS.num_layers, is_training)(images)
    predictions = {"classes": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    variables = tf.trainable_variables()
    kernels = [v for v in variables if "kernel" in v.name]
    loss += FLAGS.weight_decay * tf.add_n([tf.nn.l2_loss(v) for v in kernels])
    return loss, list(zip(tf.gradients(loss, variables), variables)), predictions


class ExamplesPerSecondHook(tf.train.SessionRunHook):
    def __init__(self, batch_size, every_n_steps=100):
        self.batch_size = batch_size
        self.timer = tf.train.SecondOrStepTimer(every_steps=every_n_steps)

    def begin(self):
        self.runs = 0
        self.started = time.time()

    def after_run(self, run_context, run_values):
        self.runs += 1
        if self.timer.should_trigger_for_step(self.runs):
            seconds, steps = self.timer.update_last_triggered_step(self.runs)
            if seconds is not None:
                tf.logging.info("%.1f examples/s", steps * self.batch_size / seconds)

    def end(self, session):
        rate = self.runs * self.batch_size / (time.time() - self.started)
        print("this task has run %d steps at %.1f examples/s" % (self.runs, rate))


def get_model_fn(num_towers, num_workers, is_chief):
    def model_fn(features, labels, mode, params):
        is_training = mode == tf.estimator.ModeKeys.TRAIN
        losses, gradients, predictions = [], [], []
        for number, (tower_images, tower_labels) in enumerate(zip(features, labels)):
            with tf.variable_scope("resnet", reuse=bool(number)):
                with tf.name_scope("tower_%d" % number) as scope:
                    with tf.device("/cpu:%d" % number if num_towers > 1 else None):
                        loss, tower_gradients, tower_predictions = tower_fn(
                            tower_images, tower_labels, is_training
                        )
                    losses.append(loss)
                    gradients.append(tower_gradients)
                    predictions.append(tower_predictions)
                    if number == 0:
                        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS, scope)
        loss = tf.reduce_mean(losses)
        merged = {
            name: tf.concat([each[name] for each in predictions], axis=0)
            for name in ("classes", "probabilities")
        }
        every = tf.concat(labels, axis=0)
        if mode == tf.estimator.ModeKeys.EVAL:
            metrics = {"accuracy": tf.metrics.accuracy(every, merged["classes"])}
            return tf.estimator.EstimatorSpec(mode, merged, loss, eval_metric_ops=metrics)

        averaged = []
        for pairs in zip(*gradients):
            gradient = tf.multiply(tf.add_n([each for each, _ in pairs]), 1.0 / len(pairs))
            averaged.append((gradient, pairs[0][1]))
        step = tf.train.get_global_step()
        rate = tf.train.piecewise_constant(
            step, [params.train_steps * 2 // 3], [params.learning_rate, params.learning_rate / 10]
        )
        tf.summary.scalar("learning_rate", rate)
        optimizer = tf.train.MomentumOptimizer(rate, 0.9)
        hooks = [ExamplesPerSecondHook(FLAGS.batch_size)]
        if params.sync and num_workers > 1:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, num_workers, num_workers)
            hooks.append(optimizer.make_session_run_hook(is_chief))
        apply = optimizer.apply_gradients(averaged, global_step=step)
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=tf.group(apply, *updates), training_hooks=hooks
        )

    return model_fn


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    session_config = tf.ConfigProto(
        allow_soft_placement=True, device_count={"CPU": FLAGS.num_towers}
    )
    config = tf.contrib.learn.RunConfig(
        session_config=session_config, model_dir=FLAGS.model_dir, save_checkpoints_steps=1000
    )
    hparams = tf.contrib.training.HParams(
        learning_rate=FLAGS.learning_rate, train_steps=FLAGS.train_steps, sync=FLAGS.sync
    )

    def make_estimator(config, hparams):
        model_fn = get_model_fn(FLAGS.num_towers, config.num_worker_replicas, config.is_chief)
        return tf.estimator.Estimator(model_fn, config=config, params=hparams)

    def train_input():
        return input_fn("train", FLAGS.num_towers, FLAGS.batch_size)

    def eval_input():
        return input_fn("eval", 1, FLAGS.eval_batch_size)

    def experiment_fn(run_config, hparams):
        return tf.contrib.learn.Experiment(
            make_estimator(run_config, hparams),
            train_input_fn=train_input,
            eval_input_fn=eval_input,
            train_steps=FLAGS.train_steps,
            eval_steps=None,
        )

    if FLAGS.run_experiment or config.num_worker_replicas > 1 or config.task_type == "ps":
        result = tf.contrib.learn.learn_runner.run(
            experiment_fn, run_config=config, hparams=hparams
        )
        metrics = result[0] if config.is_chief else None
    else:
        estimator = make_estimator(config, hparams)
        estimator.train(train_input, max_steps=FLAGS.train_steps)
        metrics = estimator.evaluate(eval_input)
    if metrics:
        print("accuracy at step %(global_step)d: %(accuracy).4f" % metrics)


if __name__ == "__main__":
    tf.app.run()
