"""Synchronous training with a Supervisor, as of 2016: flags for the hosts, no TF_CONFIG."""

import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("job_name", None, "ps or worker")
flags.DEFINE_integer("task_index", 0, "")
flags.DEFINE_string("ps_hosts", "", "")
flags.DEFINE_string("worker_hosts", "", "")
flags.DEFINE_string("train_dir", None, "")
flags.DEFINE_integer("train_steps", 200, "")
FLAGS = flags.FLAGS


def main(_):
    workers = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": workers})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    is_chief = FLAGS.task_index == 0

    device = "/job:worker/task:%d" % FLAGS.task_index
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        x = tf.random_normal([32, 3])
        y = tf.matmul(x, tf.constant([[1.0], [-2.0], [3.0]]))
        weights = tf.Variable(tf.zeros([3, 1]), name="weights")
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(0.1),
            replicas_to_aggregate=len(workers),
            total_num_replicas=len(workers),
        )
        train_op = optimizer.minimize(loss, global_step=global_step)
        local_init = optimizer.chief_init_op if is_chief else optimizer.local_step_init_op
        chief_queue_runner = optimizer.get_chief_queue_runner()
        init_tokens = optimizer.get_init_tokens_op()
        init_op = tf.global_variables_initializer()

    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=FLAGS.train_dir,
        init_op=init_op,
        local_init_op=local_init,
        ready_for_local_init_op=optimizer.ready_for_local_init_op,
        global_step=global_step,
    )
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    session = supervisor.prepare_or_wait_for_session(server.target, config=config)
    if is_chief:
        supervisor.start_queue_runners(session, [chief_queue_runner])
        session.run(init_tokens)
    step = runs = 0
    while not supervisor.should_stop() and step < FLAGS.train_steps:
        _, step, value = session.run([train_op, global_step, loss])
        runs += 1
    print("worker %d ran %d steps, loss %.4f" % (FLAGS.task_index, runs, value))
    supervisor.stop()


tf.app.run(main)
