"""A TensorFlow 1 graph program that asks a TaskSpec for its place, its devices and its server."""

import sys

import tensorflow as tf

import phalanx

v1 = tf.compat.v1
spec = phalanx.TaskSpec()
target = spec.target()
v1.disable_eager_execution()
with tf.Graph().as_default():
    with v1.device(spec.device_fn()):
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", [], initializer=v1.zeros_initializer())
        train = v1.train.GradientDescentOptimizer(0.1).minimize((w - 3.0) ** 2, global_step=step)
    hooks = [v1.train.StopAtStepHook(200)]
    with v1.train.MonitoredTrainingSession(
        master=target or "",
        is_chief=spec.is_master(),
        hooks=hooks,
        checkpoint_dir=sys.argv[1] if spec.is_master() else None,
    ) as session:
        while not session.should_stop():
            _, value = session.run([train, w])
    print(f"w is {value:.3f}")
