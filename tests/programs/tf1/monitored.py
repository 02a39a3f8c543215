"""A between-graph program with queues, synchronous, whose session has TensorFlow's own grace."""

import json
import os
import time

import numpy as np
import tensorflow as tf

tf.app.flags.DEFINE_string("logdir", None, "The directory of checkpoints.")
tf.app.flags.DEFINE_integer("steps", 200, "When to stop.")
FLAGS = tf.app.flags.FLAGS


def read_inputs():
    x = np.random.RandomState(0).randn(1000, 3).astype(np.float32)
    y = x.dot(np.array([1.0, -2.0, 3.0], np.float32)) + 0.5
    one = tf.train.slice_input_producer([tf.constant(x), tf.constant(y)], shuffle=True)
    return tf.train.shuffle_batch(one, 32, capacity=500, min_after_dequeue=100, num_threads=2)


def main(_):
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()
    own = "/job:worker/task:%d" % index
    with tf.device(tf.train.replica_device_setter(worker_device=own, cluster=cluster)):
        x, y = read_inputs()
        outputs = tf.squeeze(tf.layers.dense(x, 1), 1)
        loss = tf.losses.mean_squared_error(y, outputs)
        step = tf.train.get_or_create_global_step()
        workers = cluster.num_tasks("worker")
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(0.05), workers, workers
        )
        train = optimizer.minimize(loss, global_step=step)
    hooks = [
        tf.train.StopAtStepHook(last_step=FLAGS.steps),
        optimizer.make_session_run_hook(index == 0),
    ]
    with tf.train.MonitoredTrainingSession(
        server.target,
        is_chief=index == 0,
        checkpoint_dir=FLAGS.logdir,
        hooks=hooks,
        config=tf.ConfigProto(device_filters=["/job:ps", own]),
    ) as session:
        while not session.should_stop():
            _, value = session.run([train, loss])
        began = time.time()
    print("worker %d: loss %.4f, closed in %d s" % (index, value, time.time() - began))


if __name__ == "__main__":
    tf.app.run()
