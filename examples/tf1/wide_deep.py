"""Wide and deep learning with canned estimators, on generated data like that of a census.

    phalanx run --tf1 --ps 1 --workers 1 --evaluator \\
        examples/tf1/wide_deep.py --model_dir=/tmp/census

It was written for TensorFlow 1.8 and does not know Phalanx.
"""

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("model_dir", "/tmp/census", "The directory of the model.")
flags.DEFINE_string("model_type", "wide_deep", "wide, deep or wide_deep.")
flags.DEFINE_integer("train_steps", 600, "The number of steps.")
flags.DEFINE_integer("batch_size", 100, "The number of examples in a batch.")
FLAGS = flags.FLAGS

EDUCATION = ["school", "college", "bachelor", "master", "doctorate"]
WORK = ["private", "public", "self", "none"]


def generate(count, seed):
    """People whose income depends on education, age, hours, and pairs of job and education."""
    random = np.random.RandomState(seed)
    education = random.randint(0, len(EDUCATION), count)
    work = random.randint(0, len(WORK), count)
    age = random.uniform(18, 75, count)
    hours = random.uniform(10, 60, count)
    occupation = random.randint(0, 50, count)
    score = 0.9 * education + 0.06 * hours - 0.002 * (age - 48) ** 2
    score += 1.5 * np.where((education + work) % 2 == 0, 1, -1) + 0.8 * np.sin(occupation)
    labels = (score + 0.5 * random.randn(count) > 3.4).astype(np.int64)
    features = {
        "education": np.array(EDUCATION)[education],
        "work": np.array(WORK)[work],
        "occupation": np.array(["job%d" % each for each in occupation]),
        "age": age.astype(np.float32),
        "hours": hours.astype(np.float32),
    }
    return features, labels


def build_columns():
    education = tf.feature_column.categorical_column_with_vocabulary_list("education", EDUCATION)
    work = tf.feature_column.categorical_column_with_vocabulary_list("work", WORK)
    occupation = tf.feature_column.categorical_column_with_hash_bucket("occupation", 200)
    age = tf.feature_column.numeric_column("age", normalizer_fn=lambda value: (value - 46.0) / 16.0)
    hours = tf.feature_column.numeric_column(
        "hours", normalizer_fn=lambda value: (value - 35.0) / 14.0
    )
    buckets = tf.feature_column.bucketized_column(
        tf.feature_column.numeric_column("age"), [25, 30, 35, 40, 45, 50, 55, 60, 65]
    )
    crossed = tf.feature_column.crossed_column(["education", "work"], hash_bucket_size=100)
    wide = [education, work, occupation, buckets, crossed]
    deep = [
        age,
        hours,
        tf.feature_column.indicator_column(education),
        tf.feature_column.indicator_column(work),
        tf.feature_column.embedding_column(occupation, dimension=8),
    ]
    return wide, deep


def build_estimator(model_dir, model_type):
    wide, deep = build_columns()
    config = tf.estimator.RunConfig(save_checkpoints_steps=200, tf_random_seed=1)
    if model_type == "wide":
        return tf.estimator.LinearClassifier(wide, model_dir=model_dir, config=config)
    if model_type == "deep":
        return tf.estimator.DNNClassifier([64, 32], deep, model_dir=model_dir, config=config)
    return tf.estimator.DNNLinearCombinedClassifier(
        model_dir=model_dir,
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[64, 32],
        config=config,
    )


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    estimator = build_estimator(FLAGS.model_dir, FLAGS.model_type)
    features, labels = generate(10000, seed=1)
    train_input = tf.estimator.inputs.numpy_input_fn(
        features, labels, batch_size=FLAGS.batch_size, num_epochs=None, shuffle=True
    )
    features, labels = generate(4000, seed=2)
    eval_input = tf.estimator.inputs.numpy_input_fn(features, labels, batch_size=500, shuffle=False)
    wide, deep = build_columns()
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec(wide + deep)
    )
    result = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(train_input, max_steps=FLAGS.train_steps),
        tf.estimator.EvalSpec(
            eval_input,
            steps=None,
            exporters=tf.estimator.FinalExporter("census", receiver),
            start_delay_secs=1,
            throttle_secs=1,
        ),
    )
    if result is not None:
        print("accuracy: %(accuracy).4f, auc: %(auc).4f" % result[0])


if __name__ == "__main__":
    tf.app.run()
