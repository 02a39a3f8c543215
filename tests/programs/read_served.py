"""Read the numbers from data workers for two epochs, and write down which this task received."""

import json
import os
from pathlib import Path

from phalanx.cluster import detect
from phalanx.cluster.job_environment import find_dispatcher
from phalanx.data import Pipeline

pipeline = Pipeline.from_records("*.tfrecord", seed=1, raw={"pixels": "uint8"})
pipeline = pipeline.map(lambda batch: {"id": batch["id"], "first": batch["pixels"][:, 0]})
dataset = pipeline.dataset(32, epochs=1, service=find_dispatcher(os.environ))
passes: list[list[int]] = []
for _ in range(2):
    passes.append([])
    for batch in dataset:
        assert (batch["first"].numpy() == batch["id"].numpy() % 200).all()
        passes[-1] += batch["id"].numpy().tolist()
config = detect()
seen = {"passes": passes, "cluster": sorted(map(str, config.cluster.addresses))}
Path(f"{config.task}.json").write_text(json.dumps(seen))
