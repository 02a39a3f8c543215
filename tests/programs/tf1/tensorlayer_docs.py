"""The blocks of TensorLayer's documentation: sharded text files, logging, continuous evaluation."""

import logging
import sys
import time

import tensorflow as tf
import tensorlayer as tl
from tensorflow.contrib.data import Dataset, TextLineDataset
from tensorflow.python.framework.errors_impl import OutOfRangeError
from tensorflow.python.ops import variables as tf_variables
from tensorflow.python.training import session_run_hook
from tensorflow.python.training.monitored_session import SingularMonitoredSession
from tensorlayer.distributed import LoadCheckpoint, StopAtTimeHook, TaskSpec

logging.basicConfig(stream=sys.stdout, level=logging.INFO)
files_pattern, checkpoints_path = sys.argv[1:3]


def read(task_spec, num_epochs):
    dataset = TextLineDataset(Dataset.list_files(files_pattern))
    dataset = dataset.map(lambda line: tf.string_to_number(line), num_threads=4)
    if task_spec is not None:
        dataset = dataset.shard(task_spec.num_workers, task_spec.shard_index)
    dataset = dataset.shuffle(100)
    dataset = dataset.batch(5)
    dataset = dataset.repeat(num_epochs)
    return dataset.make_one_shot_iterator().get_next()


def create_graph(x):
    slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(slope * x - 2.0 * x))
    tf.summary.scalar("loss", loss)
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
    return train, loss, slope


class Evaluator(session_run_hook.SessionRunHook):
    def __init__(self, checkpoints_path, output_path, max_time_secs=None):
        self.checkpoints_path = checkpoints_path
        self.summary_writer = tf.summary.FileWriter(output_path)
        self.lastest_checkpoint = None
        self.max_time_secs = max_time_secs

    def after_create_session(self, session, coord):
        checkpoint = tf.train.latest_checkpoint(self.checkpoints_path)
        while self.lastest_checkpoint == checkpoint:
            time.sleep(0.5)
            checkpoint = tf.train.latest_checkpoint(self.checkpoints_path)
        self.saver.restore(session, checkpoint)
        self.lastest_checkpoint = checkpoint

    def end(self, session):
        super().end(session)
        step = int(self.lastest_checkpoint.split("-")[-1])
        self.summary_writer.add_summary(self.summary, step)
        print(f"evaluated step {step}: slope {self.slope:.2f}")

    def run_evaluation(self):
        with tf.Graph().as_default():
            create_graph(read(None, num_epochs=1))
            summary_tensors = tf.summary.merge_all()
            self.saver = tf.train.Saver(var_list=tf_variables.trainable_variables())
            hooks = [self]
            if self.max_time_secs and self.max_time_secs > 0:
                hooks.append(StopAtTimeHook(self.max_time_secs))
            slope = tf_variables.trainable_variables()[0]
            while True:
                with SingularMonitoredSession(hooks=hooks) as session:
                    try:
                        while not session.should_stop():
                            self.summary, self.slope = session.run([summary_tensors, slope])
                    except OutOfRangeError:
                        pass


task_spec = TaskSpec().user_last_worker_as_evaluator()
if task_spec.is_evaluator():
    # It runs until the launcher ends it.
    Evaluator(checkpoints_path, checkpoints_path + "/eval", 60).run_evaluation()
else:
    task_spec.create_server()
    next_element = read(task_spec, num_epochs=None)
    with tf.device(task_spec.device_fn()):
        train, loss, slope = create_graph(next_element)
    hooks = [StopAtTimeHook(5)]
    if len(sys.argv) > 3:
        saver = tf.train.Saver(var_list=tf_variables.trainable_variables())
        hooks.append(LoadCheckpoint(saver, sys.argv[3]))
    seen, batches = set(), 0
    with tl.DistributedSession(
        task_spec=task_spec, checkpoint_dir=checkpoints_path, hooks=hooks, save_checkpoint_secs=1
    ) as session:
        while not session.should_stop():
            batches += 1
            should_log = task_spec.is_master() and batches % 100 == 1
            if should_log:
                results = session.run([train, loss, slope, next_element])
                logging.info("loss %.4f, slope %.3f", results[1], results[2])
            else:
                results = session.run([train, loss, slope, next_element])
            seen.update(int(value) for value in results[3])
    print(f"task {task_spec.type} {task_spec.index} read {sorted(seen)}")
