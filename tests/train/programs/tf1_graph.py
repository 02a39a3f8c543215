"""A TensorFlow 1 graph program that asks a TaskSpec for its place, its devices and its server."""

import sys

import tensorflow as tf

import phalanx

v1 = tf.compat.v1
v1.disable_eager_execution()
spec = phalanx.TaskSpec()
spec.create_server()
data = tf.data.Dataset.range(6).shard(spec.num_workers, spec.shard_index).repeat()
with v1.device(spec.device_fn()):
    number = v1.data.make_one_shot_iterator(data).get_next()
    step = v1.train.get_or_create_global_step()
    w = v1.get_variable("w", [], initializer=v1.zeros_initializer())
    train = v1.train.GradientDescentOptimizer(0.1).minimize((w - 3.0) ** 2, global_step=step)
read = set()
with v1.train.MonitoredTrainingSession(
    master=spec.target() or "",
    is_chief=spec.is_master(),
    hooks=[v1.train.StopAtStepHook(200)],
    checkpoint_dir=sys.argv[1] if spec.is_master() else None,
    config=v1.ConfigProto(device_filters=["/job:ps", f"/job:{spec.type}/task:{spec.index}"]),
) as session:
    while not session.should_stop():
        _, value, found = session.run([train, w, number])
        read.add(int(found))
print(f"w is {value:.3f}; read {sorted(read)}")
