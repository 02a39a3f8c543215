"""The Embedding layer as a Keras layer; how its table is trained is in the tests of variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import CheckpointError, ConfigurationError


def make_model() -> Any:
    users = keras.Input((2,), dtype="int64")
    embedded = phalanx.layers.Embedding(50, 4, name="users")(users)
    model = keras.Model(users, keras.layers.Dense(1)(keras.layers.Flatten()(embedded)))
    model.compile("sgd", "mse")
    return model


def make_data(context: phalanx.Context) -> Any:
    x = np.arange(40).reshape(20, 2)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1].astype("float32"))).batch(20)


def test_table_cannot_be_read_inside_a_step(config: phalanx.RunConfig) -> None:
    def train_step(model: Any, batch: Any) -> Any:
        model(batch[0])
        return keras.ops.sum(model.get_layer("users").embeddings)

    experiment = phalanx.Experiment(model=make_model, train_data=make_data, train_step=train_step)
    with pytest.raises(ConfigurationError, match=r"users.embeddings is read inside a step"):
        phalanx.run(experiment, config.replace(global_batch_size=20))


def test_layer_is_saved_and_loaded_with_its_model(tmp_path: Path) -> None:
    model = make_model()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = np.array([[1, 49], [0, 7]])
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_index_zero_is_masked_if_asked() -> None:
    indices = np.array([[0, 3]])
    masked = phalanx.layers.Embedding(5, 2, mask_zero=True)
    assert np.asarray(masked.compute_mask(indices)).tolist() == [[False, True]]
    assert phalanx.layers.Embedding(5, 2).compute_mask(indices) is None


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="input_dim is 0: it must be an integer above 0"):
        phalanx.layers.Embedding(0, 4)


RAGGED = tf.ragged.constant([[3, 1, 3], [], [2]], dtype=tf.int64)
WEIGHTS = tf.ragged.constant([[0.5, 2.0, 1.0], [], [4.0]])


def reference(layer: Any, combiner: str, weights: Any = None) -> Any:
    """What TensorFlow computes, which leaves out the last examples if they are empty."""
    weights = None if weights is None else weights.to_sparse()
    return tf.nn.embedding_lookup_sparse(
        layer.embeddings.value, RAGGED.to_sparse(), weights, combiner=combiner
    ).numpy()


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_combiners_compute_what_those_of_tensorflow_do(combiner: str) -> None:
    layer = phalanx.layers.Embedding(5, 2, combiner=combiner)
    np.testing.assert_allclose(layer(RAGGED), reference(layer, combiner), rtol=1e-6)
    np.testing.assert_allclose(layer(RAGGED.to_sparse()), reference(layer, combiner), rtol=1e-6)
    wanted = reference(layer, combiner, WEIGHTS)
    np.testing.assert_allclose(layer(RAGGED, WEIGHTS), wanted, rtol=1e-6)
    found = layer(RAGGED.to_sparse(), weights=WEIGHTS.to_sparse())
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    # Padding of dense inputs has no weight, or is masked.
    np.testing.assert_allclose(layer(RAGGED.to_tensor(), WEIGHTS.to_tensor()), wanted, rtol=1e-6)
    masked = phalanx.layers.Embedding(5, 2, combiner=combiner, mask_zero=True)
    found = masked(RAGGED.to_tensor())
    np.testing.assert_allclose(found, reference(masked, combiner), rtol=1e-6)


def test_hashed_inputs_have_the_same_rows_in_every_process() -> None:
    layer = phalanx.layers.Embedding(1000, 1, "uniform", hash_inputs=True)
    layer.build()
    layer.embeddings.assign(np.arange(1000.0)[:, None])
    # The finalizer of SplitMix64, and FarmHash.
    assert layer(np.array([0, 1000, -1])).numpy().ravel().tolist() == [767, 388, 968]
    assert layer(np.array(["a", ""])).numpy().ravel().tolist() == [939, 263]


def test_indices_outside_of_the_vocabulary_have_rows_of_their_own() -> None:
    layer = phalanx.layers.Embedding(3, 1, num_oov_indices=2)
    layer.build()
    layer.embeddings.assign(np.arange(5.0)[:, None])
    found = layer(np.array([[0, 2, 3, 4, -1, 10**15]])).numpy().ravel()
    assert found[:2].tolist() == [0, 2]
    assert set(found[2:]) == {3, 4}


def test_rows_are_regularized_as_often_as_they_are_looked_up() -> None:
    layer = phalanx.layers.Embedding(
        3, 1, "ones", embeddings_regularizer=keras.regularizers.L2(0.5)
    )
    layer(np.array([0, 0, 2]))
    assert float(sum(layer.losses)) == 1.5


def make_bag_model() -> Any:
    genres = keras.Input((None,), dtype="string", ragged=True)
    layer = phalanx.layers.Embedding(
        20, 3, combiner="mean", hash_inputs=True, embeddings_regularizer="l2", name="genres"
    )
    model = keras.Model(genres, keras.layers.Dense(1)(layer(genres)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def test_ragged_strings_are_trained_as_by_keras(config: phalanx.RunConfig) -> None:
    def data(context: phalanx.Context | None = None) -> Any:
        words = tf.ragged.constant([["a", "b"], [], ["c"], ["a", "d", "a"]] * 5)
        y = tf.range(20, dtype=tf.float32)[:, None] / 20
        return tf.data.Dataset.from_tensor_slices((words, y)).batch(4)

    keras.utils.set_random_seed(1)
    theirs = make_bag_model()
    weights = theirs.get_weights()

    def make() -> Any:
        model = make_bag_model()
        model.set_weights(weights)
        return model

    theirs.fit(data(), verbose=0)
    experiment = phalanx.Experiment(model=make, train_data=data)
    result = phalanx.run(experiment, config.replace(global_batch_size=4, train_steps=5))
    for found, wanted in zip(result.model.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "inputs", "message"),
    [
        ({"combiner": "max"}, [1], "combiner is 'max': it must be sum, mean, sqrtn or None"),
        ({"num_oov_indices": -1}, [1], "num_oov_indices is -1"),
        ({"hash_inputs": True, "num_oov_indices": 1}, [1], "every input has a row"),
        ({}, ["a"], "gets strings: set hash_inputs=True"),
        ({"hash_inputs": True}, [0.5], "gets float32: give it integers or strings"),
        ({}, [True], "has 5 rows and gets bool, which has not all of their"),
        ({"combiner": "sum"}, [1], "a combiner needs two dimensions"),
        ({}, RAGGED, "but has no combiner"),
        ({"combiner": "sum"}, (RAGGED, WEIGHTS.to_tensor()), "in a tensor of the same kind"),
    ],
)
def test_wrong_options_and_inputs_are_described(options: Any, inputs: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        layer = phalanx.layers.Embedding(5, 2, **options)
        layer(
            *(
                inputs
                if isinstance(inputs, tuple)
                else (tf.constant(inputs),)
                if isinstance(inputs, list)
                else (inputs,)
            )
        )


def test_floats_are_indices_as_long_as_they_are_exact() -> None:
    rows = phalanx.layers.Embedding(2**8, 2)
    np.testing.assert_array_equal(rows(tf.constant([3.0])), rows(tf.constant([3])))
    many = phalanx.layers.Embedding(2**24 + 1, 2)
    with pytest.raises(ConfigurationError, match=r"has 16777217 rows and gets float32.*int64"):
        many(tf.constant([3.0]))


@pytest.mark.parametrize("change", [{"hash_inputs": False}, {"output_dim": 3}], ids=str)
def test_checkpoint_of_another_hash_or_width_is_refused(change: Any, tmp_path: Path) -> None:
    def train(**options: Any) -> Any:
        def make() -> Any:
            user = keras.Input((), dtype="int64")
            rows = phalanx.layers.Embedding(**options, name="users")(user)
            model = keras.Model(user, keras.layers.Dense(1)(rows))
            model.compile("sgd", "mse")
            return model

        def data(context: phalanx.Context) -> Any:
            pairs = (tf.range(8, dtype=tf.int64), tf.ones([8, 1]))
            return tf.data.Dataset.from_tensor_slices(pairs).batch(context.batch_size)

        config = phalanx.RunConfig(model_dir=str(tmp_path), train_steps=2, global_batch_size=4)
        return phalanx.run(phalanx.Experiment(model=make, train_data=data), config)

    options = {"input_dim": 10, "output_dim": 2, "hash_inputs": True}
    train(**options)
    message = {
        "hash_inputs": "rows of users/embeddings for hashed inputs, but the model finds",
        "output_dim": "is a checkpoint of another model or optimizer",
    }[next(iter(change))]
    with pytest.raises(CheckpointError, match=message):
        train(**{**options, **change})


def test_group_trains_what_its_layers_do_alone(tmp_path: Path) -> None:
    names = ["user", "item", "genres"]

    def make(is_group: bool) -> Any:
        keras.utils.set_random_seed(3)
        inputs = {name: keras.Input((), dtype="int64", name=name) for name in names[:2]}
        inputs["genres"] = keras.Input((3,), dtype="int64", name="genres")
        layers = {
            "user": phalanx.layers.Embedding(20, 4),
            "item": phalanx.layers.Embedding(10, 3, hash_inputs=True),
            "genres": phalanx.layers.Embedding(9, 2, combiner="mean", embeddings_regularizer="l2"),
        }
        if is_group:
            vectors = phalanx.layers.EmbeddingGroup(layers)(inputs)
        else:
            vectors = {name: layers[name](inputs[name]) for name in names}
        joined = keras.layers.Concatenate()([vectors[name] for name in names])
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        model.compile("adagrad", "mse")
        return model

    def data(context: phalanx.Context) -> Any:
        random = np.random.default_rng(0)
        x = {"user": random.integers(0, 20, 40), "item": random.integers(0, 99, 40)}
        x["genres"] = random.integers(0, 9, (40, 3))
        y = random.normal(size=(40, 1)).astype("float32")
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(context.batch_size)

    weights = []
    for is_group in (True, False):
        config = phalanx.RunConfig(
            model_dir=str(tmp_path / str(is_group)), train_steps=4, global_batch_size=10
        )
        experiment = phalanx.Experiment(model=lambda g=is_group: make(g), train_data=data)
        model = phalanx.run(experiment, config).model
        weights.append(sorted(model.get_weights(), key=lambda weight: weight.shape))
        model.save(tmp_path / "model.keras")
        x = next(iter(data(phalanx.Context(batch_size=40))))[0]
        copy = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(copy.predict(x, verbose=0), model.predict(x, verbose=0), 1e-5)
    for found, wanted in zip(*weights, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_group_names_what_is_missing() -> None:
    group = phalanx.layers.EmbeddingGroup({"user": phalanx.layers.Embedding(5, 2)}, name="fields")
    with pytest.raises(ConfigurationError, match=r"fields has layers for user, and gets .* item"):
        group({"item": tf.constant([1])})
    wrong: Any = 5
    with pytest.raises(ConfigurationError, match="user is 5"):
        phalanx.layers.EmbeddingGroup({"user": wrong})
