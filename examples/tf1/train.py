"""A typical TensorFlow 1 program, on `tf.compat.v1`. It does not use Phalanx.

    phalanx run --no-chief --workers 2 --ps 1 examples/tf1/train.py \
        --job_name={role} --task_index={index} --ps_hosts={ps_hosts} --worker_hosts={worker_hosts}
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
parser.add_argument("--task_index", type=int, required=True)
parser.add_argument("--ps_hosts", required=True)
parser.add_argument("--worker_hosts", required=True)
parser.add_argument("--train_steps", type=int, default=500)
parser.add_argument("--model_dir")
FLAGS = parser.parse_args()


def build_graph():
    """Linear regression: recover the weights that generated the labels."""
    features = tf.random.normal([64, 3])
    labels = tf.linalg.matvec(features, np.array([1.0, -2.0, 3.0], np.float32)) + 0.5
    weights = tf.get_variable("weights", [3], initializer=tf.zeros_initializer())
    bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(features, weights) + bias - labels))
    global_step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=global_step)
    return train, loss, global_step


def main():
    tf.disable_v2_behavior()
    hosts = {"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")}
    cluster = tf.train.ClusterSpec(hosts)
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    with tf.device(
        tf.train.replica_device_setter(
            worker_device=f"/job:worker/task:{FLAGS.task_index}", cluster=cluster
        )
    ):
        train, loss, global_step = build_graph()

    # Without filters, a worker waits forever for a worker that has already finished.
    device_filters = ["/job:ps", f"/job:worker/task:{FLAGS.task_index}"]
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=FLAGS.task_index == 0,
        checkpoint_dir=FLAGS.model_dir,
        config=tf.ConfigProto(device_filters=device_filters),
        hooks=[tf.train.StopAtStepHook(last_step=FLAGS.train_steps)],
    ) as session:
        while not session.should_stop():
            _, loss_now, step = session.run([train, loss, global_step])
    print(f"worker {FLAGS.task_index} stopped at step {step} with loss {loss_now:.6f}")


if __name__ == "__main__":
    main()
