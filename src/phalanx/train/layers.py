"""Embedding and DynamicEmbedding: Keras layers on sparse tables."""

import json
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from phalanx.errors import ConfigurationError
from phalanx.train.embedding_inputs import COMBINERS, SPARSE, Bags, hash_values
from phalanx.train.types import KerasVariable, Optimizer, Tensor
from phalanx.train.variables.index_shard import EVICTIONS, GrowthRules
from phalanx.train.variables.sparse_tables import current_lookups
from phalanx.train.variables.table import Keys, Table
from phalanx.train.variables.table_index import WAYS, TableIndex, TableStatistics

__all__ = ["DynamicEmbedding", "Embedding", "EmbeddingGroup"]

# Keras' inputs are floats by default, which have all integers up to these.
_EXACT_UP_TO = {tf.bfloat16: 2**8, tf.float16: 2**11, tf.float32: 2**24, tf.float64: 2**53}


@keras.saving.register_keras_serializable(package="phalanx")
class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """An embedding layer on a sparse table: a step reads and updates only the rows it looks up.

        users = phalanx.layers.Embedding(50_000_000, 64)
        vectors = users(user_indices)

    With a combiner, the layer returns one vector for each example, from any number of indices in a
    dense, ragged or sparse tensor, and optionally their weights:

        genres = phalanx.layers.Embedding(10_000, 16, combiner="mean", hash_inputs=True)
        vectors = genres(tf.ragged.constant([["drama", "crime"], []]))

    On parameter servers, the rows are distributed evenly over all of them. The layer has no
    constraint, which would need every row in every step. An optimizer with slots, such as Adam,
    updates a row and its slots only when the row is looked up.

    Args:
        input_dim: The number of rows.
        output_dim: The size of each vector.
        embeddings_initializer: The initializer of the table.
        mask_zero: Whether index 0 (of strings: the empty one) is padding. Later layers mask it, and
            a combiner leaves it out.
        combiner: "sum", "mean" or "sqrtn", over the indices of each example. "mean" divides by the
            sum of the weights, "sqrtn" by the root of the sum of their squares.
        hash_inputs: Whether the inputs are any integers or strings, each of which is hashed to a
            row. The hash is the same in every process.
        num_oov_indices: The number of additional rows for indices outside of the range from 0 to
            `input_dim - 1`, which are hashed to them. Without any, such an index is an error.
        embeddings_regularizer: A regularizer of the rows that a step looks up, as often as it does.
        optimizer: The optimizer of this table, with its own learning rate and slots; by default
            that of the model. Gradients are clipped as the optimizer of the model says.
        options: Other arguments of `keras.layers.Layer`, such as `name`.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: str | keras.initializers.Initializer = "uniform",
        mask_zero: bool = False,
        *,
        combiner: str | None = None,
        hash_inputs: bool = False,
        num_oov_indices: int = 0,
        embeddings_regularizer: str | keras.regularizers.Regularizer | None = None,
        optimizer: str | dict[str, Any] | Optimizer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, size in (("input_dim", input_dim), ("output_dim", output_dim)):
            if not isinstance(size, int) or size < 1:
                raise ConfigurationError(f"{name} is {size!r}: it must be an integer above 0")
        if not isinstance(num_oov_indices, int) or num_oov_indices < 0:
            raise ConfigurationError(
                f"num_oov_indices is {num_oov_indices!r}: it must be an integer of at least 0"
            )
        if hash_inputs and num_oov_indices:
            raise ConfigurationError(
                f"hash_inputs is set, and num_oov_indices is {num_oov_indices}: with hash_inputs, "
                "every input has a row, so leave num_oov_indices out"
            )
        if combiner not in (None, *COMBINERS):
            raise ConfigurationError(
                f"combiner is {combiner!r}: it must be {', '.join(COMBINERS)} or None"
            )
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.combiner = combiner
        self.hash_inputs = hash_inputs
        self.num_oov_indices = num_oov_indices
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        # As text: Keras saves an optimizer that is an attribute with the model, slots and all.
        self._optimizer = None if optimizer is None else _serialize_optimizer(optimizer)
        # The rows of the current call, if an EmbeddingGroup has looked them up.
        self._ready_rows: Tensor | None = None
        self.supports_masking = mask_zero
        # Autocast would round the indices in half precision.
        self.autocast = False

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        shape = (self.input_dim + self.num_oov_indices, self.output_dim)
        # Not `add_weight`, which would allocate the table here, on every task.
        self.table = Table(shape, self.embeddings_initializer, self.variable_dtype, "embeddings")
        self.table.trainable = self.trainable
        self.table.keys = Keys.HASHES if self.hash_inputs else Keys.INDICES
        if self._optimizer is not None:
            self.table.optimizer = _deserialize_optimizer(self._optimizer_config())
        self.built = True

    @property
    def embeddings(self) -> KerasVariable:
        """The whole table. It cannot be read inside a step, which has only the rows it looks up."""
        if current_lookups() is not None:
            raise ConfigurationError(
                f"{self.name}.embeddings is read inside a step, which has only the rows that it "
                "looks up: call the layer with the indices of the rows"
            )
        return self.table

    def call(self, inputs: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.combiner is None:
            if weights is not None or isinstance(inputs, SPARSE):
                raise ConfigurationError(
                    f"{self.name} gets weights, or a ragged or sparse tensor, but has no combiner: "
                    f"set combiner to {', '.join(COMBINERS[:-1])} or {COMBINERS[-1]}"
                )
            return tf.cast(self._look_up(tf.convert_to_tensor(inputs)), self.compute_dtype)
        bags = Bags.read(inputs, weights)
        counts = tf.logical_not(_is_padding(bags.indices)) if self.mask_zero else None
        combined = bags.combine(self._look_up(bags.indices), self.combiner, counts)
        return tf.cast(combined, self.compute_dtype)

    def _look_up(self, values: Tensor) -> Tensor:
        rows = self._read_rows(values)
        if self.embeddings_regularizer is not None:
            self.add_loss(self.embeddings_regularizer(rows))
        return rows

    def _read_rows(self, values: Tensor) -> Tensor:
        if self._ready_rows is not None:
            return self._ready_rows
        indices = self._find_rows(values)
        lookups = current_lookups()
        if lookups is not None and self.table.trainable:
            return lookups.look_up(self.table, indices)
        return tf.gather(self.table.value, indices)

    @property
    def is_looked_up_with_others(self) -> bool:
        """Whether an EmbeddingGroup looks its rows up together with those of other layers."""
        return bool(self.table.trainable) and self.table.index is None

    def find_rows(self, inputs: Tensor) -> Tensor:
        """Return the rows that a call with these inputs looks up."""
        values = inputs if self.combiner is None else Bags.read(inputs).indices
        return self._find_rows(tf.convert_to_tensor(values))

    def _find_rows(self, values: Tensor) -> Tensor:
        if self.hash_inputs and (values.dtype == tf.string or values.dtype.is_integer):
            return hash_values(values, self.input_dim)
        if values.dtype == tf.string:
            raise ConfigurationError(
                f"{self.name} gets strings: set hash_inputs=True, or give it indices"
            )
        if self.hash_inputs:
            raise ConfigurationError(
                f"{self.name} has hash_inputs and gets {values.dtype.name}: give it integers or "
                "strings"
            )
        if not values.dtype.is_integer and self.input_dim > _EXACT_UP_TO.get(values.dtype, 0):
            raise ConfigurationError(
                f"{self.name} has {self.input_dim} rows and gets {values.dtype.name}, which has "
                "not all of their numbers: give it integers, from keras.Input(..., dtype='int64')"
            )
        indices = tf.cast(values, tf.int64)
        if not self.num_oov_indices:
            return indices
        is_known = tf.logical_and(indices >= 0, indices < self.input_dim)
        unknown = self.input_dim + hash_values(indices, self.num_oov_indices)
        return tf.where(is_known, indices, unknown)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        if not self.mask_zero or self.combiner is not None:
            return None
        return keras.ops.logical_not(_is_padding(inputs))

    def compute_output_shape(
        self,
        inputs_shape: tuple[int | None, ...],
        weights_shape: tuple[int | None, ...] | None = None,
    ) -> tuple[int | None, ...]:
        indexed = inputs_shape if self.combiner is None else inputs_shape[:1]
        return (*indexed, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
            "combiner": self.combiner,
            "hash_inputs": self.hash_inputs,
            "num_oov_indices": self.num_oov_indices,
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "optimizer": self._optimizer_config(),
        }

    def _optimizer_config(self) -> dict[str, Any] | None:
        return None if self._optimizer is None else json.loads(self._optimizer)


@keras.saving.register_keras_serializable(package="phalanx")
class EmbeddingGroup(keras.layers.Layer):  # type: ignore[misc]
    """Several embedding layers with one lookup: on parameter servers, their rows travel together.

        fields = phalanx.layers.EmbeddingGroup(
            {name: phalanx.layers.Embedding(1_000_000, 16) for name in ("user", "item", "shop")}
        )
        vectors = fields({"user": user_ids, "item": item_ids, "shop": shop_ids})

    Each parameter server gets one message with the indices of all tables, and answers with one
    message, whatever the number of tables and their widths. The results are those of the layers.
    Growing tables are looked up one by one.

    Args:
        layers: The layers, by name. They may have combiners, and other options of their own.
        options: Other arguments of `keras.layers.Layer`, such as `name`.
    """

    def __init__(self, layers: Mapping[str, Embedding], **options: Any) -> None:
        super().__init__(**options)
        others = [name for name, layer in layers.items() if not isinstance(layer, Embedding)]
        if others or not layers:
            found = f"{others[0]} is {layers[others[0]]!r}" if others else "there are none"
            raise ConfigurationError(
                f"an EmbeddingGroup needs layers of phalanx.layers, but {found}"
            )
        self.embeddings = dict(layers)
        self.autocast = False

    def build(self, input_shape: Any = None) -> None:
        for layer in self.embeddings.values():
            if not layer.built:
                with keras.name_scope(layer.name):
                    layer.build()
        self.built = True

    def call(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if set(inputs) != set(self.embeddings):
            raise ConfigurationError(
                f"{self.name} has layers for {', '.join(sorted(self.embeddings))}, and gets inputs "
                f"for {', '.join(sorted(inputs))}: give each layer its input"
            )
        together = {}
        if (lookups := current_lookups()) is not None:
            together = {n: e for n, e in self.embeddings.items() if e.is_looked_up_with_others}
            pairs = [(e.table, e.find_rows(inputs[n])) for n, e in together.items()]
            rows = dict(zip(together, lookups.look_up_all(pairs), strict=True))
        outputs = {}
        for name, layer in self.embeddings.items():
            layer._ready_rows = rows[name] if name in together else None
            try:
                outputs[name] = layer(inputs[name])
            finally:
                layer._ready_rows = None
        return outputs

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> dict[str, Any]:
        pairs = self.embeddings.items()
        return {name: layer.compute_output_shape(input_shape[name]) for name, layer in pairs}

    def get_config(self) -> dict[str, Any]:
        pairs = self.embeddings.items()
        layers = {name: keras.saving.serialize_keras_object(layer) for name, layer in pairs}
        return {**super().get_config(), "layers": layers}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "EmbeddingGroup":
        layers = config.pop("layers")
        made = {n: keras.saving.deserialize_keras_object(each) for n, each in layers.items()}
        return cls(made, **config)


@keras.saving.register_keras_serializable(package="phalanx")
class DynamicEmbedding(Embedding):
    """An embedding layer for ids that are not known before: they get rows while it is trained.

        users = phalanx.layers.DynamicEmbedding(32, max_rows=1_000_000, min_count=3)
        vectors = users(user_ids)

    The ids are any integers or strings. A step looks up the rows that its ids have; then the ids
    are counted, and those that were seen often enough get a row with initial values. All other ids
    share some rows. `max_rows` is the budget: an id is hashed to a bucket of 16 rows, and if all of
    these are taken, another id of the bucket has to leave. Evaluation, prediction and exported
    models look up rows, and change nothing.

    On parameter servers, each server has some of the buckets, with their rows.

    Args:
        output_dim: The size of each vector.
        max_rows: The number of rows. From 16 on, the next lower multiple of 16 is used.
        min_count: How often an id must be seen to get a row. As many ids as there are rows are
            counted at a time; one that was not seen for longest is forgotten.
        max_age: After how many steps an id that was not seen loses its row; at most an eighth of
            them later. Never, by default.
        evict: Which id leaves a bucket that is full: the "oldest", which was not seen for longest,
            or the "rarest", which was seen less often than the id that needs a row.
        embeddings_initializer: The initializer of the rows.
        mask_zero: As for `Embedding`; padding is not counted.
        combiner: As for `Embedding`.
        num_oov_indices: The number of rows that ids without a row of their own share.
        embeddings_regularizer: As for `Embedding`.
        optimizer: As for `Embedding`.
        options: Other arguments of `keras.layers.Layer`, such as `name`.
    """

    def __init__(
        self,
        output_dim: int,
        max_rows: int = 1_000_000,
        *,
        min_count: int = 1,
        max_age: int | None = None,
        evict: str = "oldest",
        embeddings_initializer: str | keras.initializers.Initializer = "uniform",
        mask_zero: bool = False,
        combiner: str | None = None,
        num_oov_indices: int = 1,
        embeddings_regularizer: str | keras.regularizers.Regularizer | None = None,
        optimizer: str | dict[str, Any] | Optimizer | None = None,
        **options: Any,
    ) -> None:
        sizes = {"max_rows": max_rows, "min_count": min_count, "num_oov_indices": num_oov_indices}
        if max_age is not None:
            sizes["max_age"] = max_age
        for name, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise ConfigurationError(f"{name} is {size!r}: it must be an integer above 0")
        if evict not in EVICTIONS:
            raise ConfigurationError(f"evict is {evict!r}: it must be {' or '.join(EVICTIONS)}")
        ways = min(WAYS, max_rows)
        buckets = max_rows // ways
        super().__init__(
            buckets * ways, output_dim, embeddings_initializer, mask_zero, combiner=combiner,
            num_oov_indices=num_oov_indices, embeddings_regularizer=embeddings_regularizer,
            optimizer=optimizer, **options,
        )  # fmt: skip
        self.max_rows = max_rows
        self._buckets, self._ways = buckets, ways
        self._rules = GrowthRules(min_count, max_age, evict)

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        super().build(input_shape)
        initial = (self.embeddings_initializer, tuple(self.table.shape), self.variable_dtype)
        self._index = TableIndex(
            self._buckets, self._ways, self.num_oov_indices, self._rules, initial
        )
        # As attributes, so that Keras saves them with the layer.
        self.ids, self.counts, self.seen, self.totals = self._index.tables
        self.table.index, self.table.in_ranges = self._index, True
        self.table.keys = Keys.IDS

    def call(
        self, inputs: Tensor, weights: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        if training is True and current_lookups() is None and not in_symbolic_scope():
            raise ConfigurationError(
                f"{self.name} is trained outside of phalanx.run and phalanx.fit, where no id gets "
                "a row: train it with one of these, or use phalanx.layers.Embedding"
            )
        return super().call(inputs, weights)

    def statistics(self) -> TableStatistics:
        """Return how many ids have a row, and how many have got and lost one, exactly."""
        if not self.built:
            raise ConfigurationError(f"{self.name} has no rows yet: build its model first")
        return self._index.statistics()

    def _read_rows(self, values: Tensor) -> Tensor:
        ids = self._find_ids(values)
        lookups = current_lookups()
        if lookups is not None and self.table.trainable:
            is_counted = tf.logical_not(_is_padding(values)) if self.mask_zero else None
            return lookups.look_up_ids(self.table, ids, is_counted)
        rows = tf.zeros_like(ids) if in_symbolic_scope() else self._index.find(ids)
        return tf.gather(self.table.value, rows)

    def _find_ids(self, values: Tensor) -> Tensor:
        if values.dtype == tf.string:
            return tf.strings.to_hash_bucket_fast(values, 2**63 - 1)
        if not values.dtype.is_integer:
            raise ConfigurationError(
                f"{self.name} gets {values.dtype.name}: give it integers or strings"
            )
        return tf.cast(values, tf.int64)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["input_dim"], config["hash_inputs"]
        return {
            **config,
            "max_rows": self.max_rows,
            "min_count": self._rules.min_count,
            "max_age": self._rules.max_age,
            "evict": self._rules.evict,
        }


def _serialize_optimizer(optimizer: str | dict[str, Any] | Optimizer) -> str:
    try:
        made = _deserialize_optimizer(optimizer)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"optimizer is {optimizer!r}, which is no optimizer of Keras: {error}"
        ) from None
    if made.clipnorm or made.clipvalue or made.global_clipnorm:
        raise ConfigurationError(
            "the optimizer of an embedding has a limit for gradients: set clipnorm, clipvalue and "
            "global_clipnorm of the model's optimizer, which hold for tables, too"
        )
    return json.dumps(keras.saving.serialize_keras_object(made))


def _deserialize_optimizer(optimizer: str | dict[str, Any] | Optimizer) -> Optimizer:
    if isinstance(optimizer, dict):
        # `keras.optimizers.get` does not know all of Keras' optimizers by their config.
        return keras.saving.deserialize_keras_object(optimizer)
    return keras.optimizers.get(optimizer)


def _is_padding(values: Tensor) -> Tensor:
    return keras.ops.equal(values, "" if values.dtype == "string" else 0)
