"""Advertisements and clicks in the shape of the Criteo data sets: 13 numbers, 26 categories.

Write generated clicks as TFRecords, or as text in the format in which Criteo publishes its data:

    python examples/recommender/clicks.py --out data/clicks --count 300000
    python examples/recommender/clicks.py --out data/clicks --count 300000 --format tsv

The categories are heavy-tailed: a few are frequent, most are rare. Whether a user clicks depends on
each category, on products of pairs of categories, and on the numbers.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import phalanx
from phalanx import records
from phalanx.data import Pipeline

NUMBERS, CATEGORIES = 13, 26
SHARDS = 8
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Clicks:
    """Generated examples, and the probability of each click, which no model knows."""

    label: Array
    numbers: Array
    categories: Array
    probability: Array

    @classmethod
    def generate(cls, count: int, seed: int) -> "Clicks":
        """Generate examples; those of every seed follow the same rule."""
        rule, random = np.random.default_rng(0), np.random.default_rng(seed)
        numbers = np.floor(random.lognormal(1.0, 1.5, (count, NUMBERS))).astype("float32")
        logit = -1.5 + np.log1p(numbers) @ rule.normal(0, 0.25, NUMBERS)
        names, factors = [], []
        for field in range(CATEGORIES):
            size = int(10 ** rule.uniform(1, 4))
            # The logarithm of the rank is uniform: rank 1 is ten times as frequent as rank 10.
            rank = (size ** random.uniform(size=count)).astype("int64") - 1
            logit += rule.normal(0, 0.25, size)[rank]
            factors.append(rule.normal(0, 0.6, (size, 2))[rank])
            names.append((rank * 2654435761 + field * 40503) % 2**32)
        for left, right in zip(factors[0:12:2], factors[1:12:2], strict=True):
            logit += (left * right).sum(1)
        probability = 1 / (1 + np.exp(-logit))
        label = (random.uniform(size=count) < probability).astype("float32")
        categories = np.char.mod("%08x", np.stack(names, 1)).astype("S8").astype(object)
        # Some values are unknown, as in the published data.
        categories[random.uniform(size=categories.shape) < 0.03] = b""
        return cls(label, numbers, categories, probability)

    def best_auc(self) -> float:
        """The AUC of a model that knows the probability of each click."""
        ranks = np.empty(len(self.label))
        ranks[np.argsort(self.probability)] = np.arange(1, len(self.label) + 1)
        clicked = self.label > 0
        positive, negative = clicked.sum(), (~clicked).sum()
        above = ranks[clicked].sum() - positive * (positive + 1) / 2
        return float(above / (positive * negative))

    def write_records(self, path: str) -> None:
        """Write TFRecord files."""
        with records.ShardedWriter(path, SHARDS) as writer:
            columns = {"label": self.label, "numbers": self.numbers}
            for begin in range(0, len(self.label), 10_000):
                part = slice(begin, begin + 10_000)
                batch = {name: values[part] for name, values in columns.items()}
                batch["categories"] = self.categories[part].tolist()
                for example in records.encode_examples(batch):
                    writer.write(example)

    def write_text(self, path: Path) -> None:
        """Write lines of a label, 13 integers and 26 strings, with tabs between them."""
        with path.open("wb") as file:
            for label, numbers, categories in zip(
                self.label, self.numbers, self.categories, strict=True
            ):
                values = [int(label), *numbers.astype("int64").tolist()]
                file.write(b"\t".join([*(b"%d" % value for value in values), *categories]) + b"\n")


def read(data_dir: str, part: str, context: phalanx.Context) -> tf.data.Dataset:
    """Read `part`, which is "train" or "eval", from TFRecord or text files."""
    if list(Path(data_dir).glob(f"{part}*.tsv")):
        return _read_text(f"{data_dir}/{part}*.tsv", part == "train", context)
    seed = (context.seed or 0) if part == "train" else None
    pipeline = Pipeline.from_records(f"{data_dir}/{part}*.tfrecord", seed=seed).map(split_label)
    return pipeline.dataset(context.batch_size, share=context, epochs=1)


def split_label(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the inputs of the model and the label."""
    inputs = {"numbers": batch["numbers"], "categories": batch["categories"]}
    return inputs, tf.reshape(batch["label"], [-1, 1])


def _read_text(pattern: str, shuffle: bool, context: phalanx.Context) -> tf.data.Dataset:
    lines = tf.data.TextLineDataset(tf.io.matching_files(pattern))
    lines = lines.shard(context.num_shards, context.shard)
    if shuffle:
        lines = lines.shuffle(100_000, seed=context.seed)
    defaults = [[0.0]] * (1 + NUMBERS) + [[""]] * CATEGORIES

    def parse(batch: Any) -> Any:
        fields = tf.io.decode_csv(batch, defaults, field_delim="\t", use_quote_delim=False)
        numbers, categories = fields[1 : 1 + NUMBERS], fields[1 + NUMBERS :]
        inputs = {"numbers": tf.stack(numbers, 1), "categories": tf.stack(categories, 1)}
        return inputs, fields[0][:, None]

    return lines.batch(context.batch_size).map(parse, tf.data.AUTOTUNE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the directory to write to")
    parser.add_argument("--count", type=int, default=300_000, help="examples to train on")
    parser.add_argument("--eval-count", type=int, default=20_000, help="examples to evaluate on")
    parser.add_argument("--format", choices=("tfrecord", "tsv"), default="tfrecord")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate(
        (("train", arguments.count), ("eval", arguments.eval_count)), 1
    ):
        clicks = Clicks.generate(count, seed)
        if arguments.format == "tsv":
            clicks.write_text(out / f"{part}.tsv")
        else:
            clicks.write_records(str(out / f"{part}.tfrecord"))
        print(f"{count}\t{out}/{part}\tclicks {clicks.label.mean():.1%}, AUC at best "
              f"{clicks.best_auc():.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
