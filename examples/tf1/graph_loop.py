"""A program in the manner of TensorLayer's distributed module: a graph, fed from NumPy arrays.

    phalanx run --tf1 --no-chief --ps 1 --workers 3 examples/tf1/graph_loop.py \
        --checkpoint_dir=runs/graph

The last worker does not train: it evaluates the checkpoints that the master (worker 0) saves. A
second run in another directory can begin with the weights of the first, by --load.
"""

import time

import numpy as np
import tensorflow as tf
import tensorlayer as tl
from tensorflow.python.training import session_run_hook
from tensorflow.python.training.monitored_session import SingularMonitoredSession

tf.flags.DEFINE_string("checkpoint_dir", "runs/graph", "Where the master saves.")
tf.flags.DEFINE_string("load", "", "A checkpoint to begin with.")
tf.flags.DEFINE_integer("train_steps", 300, "When to stop.")
tf.flags.DEFINE_integer("max_seconds", 600, "When to stop at the latest.")
FLAGS = tf.flags.FLAGS

CLASSES, PIXELS, BATCH = 10, 64, 32


def load_digits(seed):
    """Make noisy images of ten patterns."""
    patterns = np.random.RandomState(0).uniform(size=(CLASSES, PIXELS))
    random = np.random.RandomState(seed)
    labels = random.randint(CLASSES, size=3000)
    images = patterns[labels] + random.normal(scale=0.5, size=(len(labels), PIXELS))
    return images.astype(np.float32), labels.astype(np.int64)


def create_graph():
    x = tf.placeholder(tf.float32, [None, PIXELS], name="x")
    y = tf.placeholder(tf.int64, [None], name="y")
    hidden = tf.layers.dense(x, 32, tf.nn.relu, name="hidden")
    logits = tf.layers.dense(hidden, CLASSES, name="logits")
    loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    return x, y, loss, accuracy


def train(task_spec):
    images, labels = load_digits(seed=1 + task_spec.shard_index)
    with tf.device(task_spec.device_fn()):
        x, y, loss, accuracy = create_graph()
        tf.summary.scalar("loss", loss)
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdamOptimizer(0.003).minimize(loss, global_step=step)
        hooks = [
            tl.distributed.StopAtTimeHook(FLAGS.max_seconds),
            tf.train.StopAtStepHook(last_step=FLAGS.train_steps),
        ]
        if FLAGS.load:
            saver = tf.train.Saver(var_list=tf.trainable_variables())
            hooks.append(tl.distributed.LoadCheckpoint(saver, FLAGS.load))
    random = np.random.RandomState(task_spec.shard_index)
    batches = 0
    with tl.distributed.DistributedSession(
        task_spec=task_spec,
        checkpoint_dir=FLAGS.checkpoint_dir,
        hooks=hooks,
        save_checkpoint_secs=2,
        save_summaries_steps=50,
        config=tf.ConfigProto(allow_soft_placement=True),
    ) as session:
        while not session.should_stop():
            chosen = random.randint(len(labels), size=BATCH)
            feed = {x: images[chosen], y: labels[chosen]}
            batches += 1
            if task_spec.is_master() and batches % 50 == 1:
                _, now, reached, value = session.run([train_op, step, accuracy, loss], feed)
                print(f"step {now}: loss {value:.3f}, accuracy {reached:.3f}")
            else:
                session.run(train_op, feed_dict=feed)
    print(f"{task_spec.type} {task_spec.index} trained on {batches} batches")


class Evaluator(session_run_hook.SessionRunHook):
    """Restores each new checkpoint."""

    def __init__(self, saver):
        self.saver = saver
        self.checkpoint = None
        self.step = 0

    def after_create_session(self, session, coord):
        newest = self.checkpoint
        deadline = time.time() + FLAGS.max_seconds
        while newest == self.checkpoint:
            if time.time() > deadline:
                raise RuntimeError(f"no new checkpoint in {FLAGS.checkpoint_dir}")
            time.sleep(0.5)
            newest = tf.train.latest_checkpoint(FLAGS.checkpoint_dir)
        self.saver.restore(session, newest)
        self.checkpoint = newest
        self.step = int(newest.split("-")[-1])


def evaluate():
    images, labels = load_digits(seed=99)
    x, y, _, accuracy = create_graph()
    writer = tf.summary.FileWriter(FLAGS.checkpoint_dir + "/eval")
    evaluator = Evaluator(tf.train.Saver())
    while evaluator.step < FLAGS.train_steps:
        with SingularMonitoredSession(hooks=[evaluator]) as session:
            value = session.run(accuracy, feed_dict={x: images, y: labels})
        print(f"evaluated step {evaluator.step}: accuracy {value:.3f}")
        summary = tf.Summary(value=[tf.Summary.Value(tag="accuracy", simple_value=value)])
        writer.add_summary(summary, evaluator.step)
    writer.close()


def main(_):
    task_spec = tl.distributed.TaskSpec()
    if task_spec.num_workers > 1:
        task_spec = task_spec.user_last_worker_as_evaluator()
    if task_spec.is_evaluator():
        evaluate()
    else:
        task_spec.create_server()
        train(task_spec)


if __name__ == "__main__":
    tf.app.run()
