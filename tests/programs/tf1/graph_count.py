"""Counts on the parameter servers, with the names imported from Phalanx, until a given step."""

import sys
import time

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.distributed import DistributedSession, TaskSpec

tf.disable_v2_behavior()
checkpoint_dir, last_step = sys.argv[1], int(sys.argv[2])
task_spec = TaskSpec()
task_spec.create_server()
with tf.device(task_spec.device_fn()):
    step = tf.train.get_or_create_global_step()
    value = tf.get_variable("value", [], initializer=tf.zeros_initializer())
    count = tf.group(tf.assign_add(value, 1.0), tf.assign_add(step, 1))
stop = tf.train.StopAtStepHook(last_step=last_step)
with DistributedSession(task_spec, checkpoint_dir, hooks=[stop], save_checkpoint_secs=1) as session:
    runs = 0
    while not session.should_stop():
        session.run(count)
        runs += 1
        if runs % 20 == 1:
            print(f"runs {runs}", flush=True)
        time.sleep(0.02)
print(f"{task_spec.type} {task_spec.index} is done", flush=True)
