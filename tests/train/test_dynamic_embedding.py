"""DynamicEmbedding: its rows while it is trained, saved, restored and exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.export.saved_model import export
from phalanx.train.model_dir.checkpoint_loader import load_trained
from phalanx.train.run_estimate import estimate_run
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

BATCH, STEPS, WIDTH = 16, 40, 3


def make_batches() -> tuple[Any, Any]:
    random = np.random.default_rng(2)
    ids = (random.zipf(1.3, (STEPS, BATCH)) * 7919) % 97 - 20
    return ids.astype("int64"), random.normal(size=(STEPS, BATCH)).astype("float32")


class Growing(phalanx.Experiment):
    """The sum of each id's vector is its prediction, and the gradient of a vector its label."""

    def __init__(self, model_optimizer: Any, is_split: bool = False, **options: Any) -> None:
        self.optimizer_name, self.is_split, self.options = model_optimizer, is_split, options

    def model(self) -> Any:
        ids = keras.Input((), dtype="int64", name="ids")
        layer = phalanx.layers.DynamicEmbedding(WIDTH, name="users", **self.options)
        model = keras.Model(ids, keras.ops.sum(layer(ids), axis=-1))
        model.compile(keras.optimizers.get(self.optimizer_name), "mse")
        return model

    def train_data(self, context: phalanx.Context) -> Any:
        data = tf.data.Dataset.from_tensor_slices(make_batches())
        return data.unbatch().batch(BATCH // 2) if self.is_split else data

    def train_step(self, model: Any, batch: Any) -> Any:
        ids, labels = batch
        return model(ids, training=True) * labels


def train(experiment: Growing, config: phalanx.RunConfig, steps: int = STEPS) -> Any:
    return phalanx.run(experiment, config.replace(global_batch_size=BATCH, train_steps=steps))


def read_rows(layer: Any) -> dict[int, Any]:
    held = layer.ids.value.numpy()[:, : layer._ways].reshape(-1)
    rows = np.asarray(layer.embeddings.value)
    return {int(key): rows[row] for row, key in enumerate(held) if key != -(2**63)}


@pytest.mark.parametrize("name", ["adagrad", "sgd"])
@pytest.mark.parametrize("options", [{}, {"min_count": 3}], ids=str)
def test_rows_equal_a_dictionary_of_vectors(
    config: phalanx.RunConfig, name: str, options: dict[str, Any]
) -> None:
    start = keras.initializers.Constant(0.5)
    optimizer = (
        keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.3)
        if name == "adagrad"
        else keras.optimizers.SGD(0.1)
    )
    experiment = Growing(optimizer, max_rows=16 * 50, embeddings_initializer=start, **options)
    layer = train(experiment, config).model.get_layer("users")

    vectors: dict[int, Any] = {}
    slots: dict[int, Any] = {}
    counts: dict[int, int] = {}
    for ids, labels in zip(*make_batches(), strict=True):
        for key in set(ids.tolist()) & set(vectors):
            gradient = labels[ids == key].sum() / BATCH
            slots[key] = slots[key] + gradient**2
            scale = np.sqrt(slots[key] + 1e-7) if name == "adagrad" else 1
            vectors[key] = vectors[key] - 0.1 * gradient / scale
        for key in ids.tolist():
            counts[key] = counts.get(key, 0) + 1
        for key in set(ids.tolist()) - set(vectors):
            if counts[key] >= options.get("min_count", 1):
                vectors[key], slots[key] = np.float32(0.5), np.float32(0.3)
    rows = read_rows(layer)
    assert set(rows) == set(vectors)
    for key, row in rows.items():
        np.testing.assert_allclose(row, np.full(WIDTH, vectors[key]), rtol=1e-5)
    assert layer.statistics().rows == layer.statistics().admitted == len(vectors)


def test_evicted_id_leaves_neither_values_nor_slots(config: phalanx.RunConfig) -> None:
    optimizer = keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.3)
    start = keras.initializers.Constant(0.5)
    experiment = Growing(optimizer, max_rows=4, embeddings_initializer=start)
    model = train(experiment, config).model
    layer = model.get_layer("users")
    held = layer.statistics()
    assert held.rows == 4
    assert held.evicted == held.admitted - 4 > 0
    slot = next(v for v in model.optimizer.variables if "accumulator" in v.path)
    last_ids = set(make_batches()[0][-1].tolist())
    fresh = [
        row for row, (key, count) in enumerate(zip(layer.ids.value[0].numpy(),
                                                   layer.counts.value[0].numpy(), strict=True))
        if key in last_ids and count == np.sum(make_batches()[0][-1] == key)
    ]  # fmt: skip
    assert fresh, "the last step admits an id"
    for row in fresh:
        np.testing.assert_array_equal(layer.embeddings.value[row], np.full(WIDTH, 0.5, "float32"))
        np.testing.assert_array_equal(slot.value[row], np.full(WIDTH, 0.3, "float32"))


def test_restored_run_equals_a_run_without_a_break(
    config: phalanx.RunConfig, tmp_path: Path
) -> None:
    options = {"max_rows": 32, "min_count": 2, "evict": "rarest", "max_age": 16,
               "embeddings_initializer": keras.initializers.RandomUniform(seed=3)}  # fmt: skip
    whole = train(Growing("adam", **options), config.replace(model_dir=str(tmp_path / "a")))
    parts = config.replace(model_dir=str(tmp_path / "b"))
    train(Growing("adam", **options), parts, steps=STEPS // 2)
    continued = train(Growing("adam", **options), parts)
    first, second = (r.model.get_layer("users") for r in (whole, continued))
    assert first.statistics() == second.statistics()
    expected, found = read_rows(first), read_rows(second)
    assert set(expected) == set(found)
    for key, row in expected.items():
        np.testing.assert_allclose(found[key], row, rtol=1e-6)


def test_plain_tensorflow_answers_from_the_export(
    config: phalanx.RunConfig, tmp_path: Path
) -> None:
    experiment = Growing("adam", max_rows=64, min_count=2)
    config = config.replace(model_dir=str(tmp_path / "run"), global_batch_size=BATCH)
    result = train(experiment, config)
    ids = np.arange(-30, 90)
    expected = np.asarray(result.model(ids))
    before = result.model.get_layer("users").statistics()
    result.model.predict(ids, verbose=0)
    assert result.model.get_layer("users").statistics() == before
    path = export(experiment, load_trained(experiment, config, result.checkpoint), str(tmp_path))
    program = (
        "import sys, numpy as np, tensorflow as tf\n"
        "served = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "(answer,) = served(tf.range(-30, 90, dtype=tf.int64)).values()\n"
        "assert 'phalanx' not in sys.modules\n"
        "np.save(sys.argv[2], answer.numpy())\n"
    )
    saved = tmp_path / "answer.npy"
    subprocess.run([sys.executable, "-c", program, path, saved], check=True, timeout=120)
    np.testing.assert_allclose(np.load(saved), expected, rtol=1e-6)
    assert len(np.unique(expected)) > 5


def test_strings_and_padding() -> None:
    layer = phalanx.layers.DynamicEmbedding(2, max_rows=16, combiner="sum", mask_zero=True)
    empty = layer(tf.constant([["", ""]]))
    np.testing.assert_array_equal(empty, np.zeros((1, 2)))
    with pytest.raises(ConfigurationError, match="gets float32: give it integers or strings"):
        layer(tf.constant([[1.0]]))


def test_layer_is_saved_and_loaded_with_its_model(tmp_path: Path) -> None:
    model = Growing("sgd", max_rows=16, max_age=9).model()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("users").get_config() == model.get_layer("users").get_config()
    np.testing.assert_array_equal(loaded(np.arange(5)), model(np.arange(5)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rows": 0}, "max_rows is 0"),
        ({"min_count": 0}, "min_count is 0"),
        ({"max_age": 0}, "max_age is 0"),
        ({"num_oov_indices": 0}, "num_oov_indices is 0"),
        ({"evict": "newest"}, "evict is 'newest': it must be oldest or rarest"),
    ],
)
def test_invalid_arguments_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        phalanx.layers.DynamicEmbedding(4, **options)


@pytest.mark.parametrize(
    ("stores", "options"),
    [
        (3, {"min_count": 2, "evict": "rarest", "max_age": 9}),
        pytest.param(2, {}, marks=pytest.mark.slow),
        pytest.param(5, {}, marks=pytest.mark.slow),
    ],
)
def test_rows_do_not_depend_on_the_number_of_shards(stores: int, options: dict[str, Any]) -> None:
    wanted, found = (train_in_stores(number, options) for number in (1, stores))
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    (totals,) = (value for name, value in wanted.items() if name.endswith("totals"))
    assert totals[0, 2:].sum() > 0, "some ids have lost their row"


def train_in_stores(stores: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train in so many stores, pass on to one, go on, and return all variables of the host."""
    # Four buckets, so that one of five stores has no row.
    settings: dict[str, Any] = {
        "max_rows": 64, "num_oov_indices": 3, "optimizer": keras.optimizers.Adagrad(0.1),
        "embeddings_initializer": keras.initializers.RandomUniform(seed=3), **options,
    }  # fmt: skip
    experiment = Growing("adam", **settings)
    step = StepFunction(experiment, phalanx.Context(batch_size=BATCH))
    step.build(experiment.train_data(phalanx.Context()).element_spec)
    host_variables = step.make_host_variables()
    for table in host_variables.described():
        if table.path.endswith("embeddings"):
            table.assign(np.linspace(-1, 1, table.nbytes // 4).reshape(table.shape))
    data = list(zip(*make_batches(), strict=True))
    for devices, batches in ((stores, data[:25]), (1, data[25:])):
        variables = DeviceVariables.place(host_variables, ["/device:CPU:0"] * devices, Clipping())
        variables.push()

        @tf.function  # type: ignore[untyped-decorator]
        def update(ids: Any, labels: Any, variables: DeviceVariables = variables) -> None:
            buffers, state = variables.read(), variables.read_state()
            result = step.train(variables, buffers, state, (ids, labels), 0, 0)
            variables.apply(result.gradients)
            variables.grow(result.sightings)

        for ids, labels in batches:
            update(tf.constant(ids), tf.constant(labels))
        variables.pull()
    # Keras numbers optimizers: adam, adam_1.
    return {
        f"{number} {variable.name}": variable.numpy()
        for number, variable in enumerate(host_variables.all())
    }


def test_parts_of_batches_are_counted_together(config: phalanx.RunConfig, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_rows": 32, "min_count": 3, "embeddings_initializer": "ones"}
    whole = train(Growing("sgd", **options), config)
    parts = config.replace(model_dir=str(tmp_path / "parts"), accumulate=2)
    accumulated = train(Growing("sgd", is_split=True, **options), parts)
    expected, found = (read_rows(r.model.get_layer("users")) for r in (whole, accumulated))
    assert set(expected) == set(found)
    for key, row in expected.items():
        np.testing.assert_allclose(found[key], row, rtol=1e-5)


class OwnStep(keras.Model):  # type: ignore[misc]
    """A model that trains itself."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def test_other_ways_of_training_are_refused(config: phalanx.RunConfig) -> None:
    with pytest.raises(ConfigurationError, match=r"DynamicEmbedding, but xla is set"):
        train(Growing("sgd", max_rows=16), config.replace(xla=True))
    with pytest.raises(ConfigurationError, match=r"but ps_replicas is set, and asynchronous"):
        cluster = phalanx.Cluster.of(chief="a:1", workers=["b:1"], ps=["c:1", "d:1"])
        estimate_run(Growing("sgd", max_rows=16), config.replace(ps_replicas=2), cluster)
    with pytest.raises(ConfigurationError, match=r"but Muon does not update each element"):
        train(Growing("muon", max_rows=16), config)
    for layer in (
        phalanx.layers.DynamicEmbedding(2, max_rows=16),
        phalanx.layers.Embedding(100, 2, hash_inputs=True),
    ):
        ids = keras.Input((), dtype="int64")
        own = OwnStep(ids, keras.ops.sum(layer(ids), axis=-1))
        own.compile("sgd", "mse")
        with pytest.raises(ConfigurationError, match=r"OwnStep overrides train_step.*sparse table"):
            phalanx.fit(own, np.arange(4), np.zeros(4), verbose=0)
    model = Growing("sgd", max_rows=16).model()
    with pytest.raises(ConfigurationError, match=r"outside of phalanx.run and phalanx.fit"):
        keras.Model.fit(model, np.arange(4), np.zeros(4), verbose=0)
