"""Uses and misuses tensorlayer.distributed in one process, and prints a line for each."""

import sys

import tensorflow as tf
import tensorlayer as tl

FOLDER = sys.argv[1]


def error_of(function):
    try:
        return f"no error: {function()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run(last_step, folder, load=None, **settings):
    """Count in a graph, and return the value, the step and the number of runs of this session."""
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        value = tf.get_variable("value", [], initializer=tf.zeros_initializer())
        amount = tf.placeholder(tf.float32, [])
        count = [tf.assign_add(value, amount), tf.assign_add(step, 1)]
        hooks = [tf.train.StopAtStepHook(last_step=last_step), tl.distributed.StopAtTimeHook(600)]
        if load:
            hooks.append(tl.distributed.LoadCheckpoint(tf.train.Saver([value]), load))
        spec = tl.distributed.TaskSpec({})
        runs = 0
        with tl.distributed.DistributedSession(spec, folder, hooks=hooks, **settings) as session:
            while not session.should_stop():
                now = session.run(count, feed_dict={amount: 2})
                runs += 1
        return [float(now[0]), int(now[1]), runs]


print("first", run(3, FOLDER + "/a"))
print("restored", run(5, FOLDER + "/a", save_summaries_secs=1, stop_grace_period_secs=1))
print("loaded", run(2, FOLDER + "/b", load=FOLDER + "/a/model.ckpt-5"))
print("not loaded again", run(3, FOLDER + "/b", load=FOLDER + "/a/model.ckpt-5"))
stop = tl.distributed.StopAtTimeHook(0)
with tf.Graph().as_default(), tl.DistributedSession(hooks=[stop]) as session:
    one = 0
    while not session.should_stop():
        session.run(tf.get_default_graph().get_operations()[0])
        one += 1
print("stopped after", one)
spec = tl.distributed.TaskSpecDef("worker", 1, None, "a:1", "b:1,c:1")
evaluator = spec.use_last_worker_as_evaluator()
print(error_of(lambda: tl.distributed.DistributedSession(evaluator)))
alone = tl.distributed.TaskSpecDef("worker", 1, None, None, "b:1,c:1")
print(error_of(lambda: tl.distributed.DistributedSession(alone)))
print(error_of(lambda: tl.layers.DenseLayer(1)))
