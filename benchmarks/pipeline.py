"""The input pipeline of CIFAR-10, compared with PyTorch's DataLoader.

Both read images of 32 x 32 from files in shuffled order, pad, crop and flip them at random,
standardize them and make batches of 128. Phalanx reads and parses TFRecords; PyTorch reads rows of
a memory-mapped array, which is less work. In the first comparison, each has one process and one
core; in the second, PyTorch has two worker processes and both have all cores.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

COUNT, BATCH, ROUNDS = 20_000, 128, 3


def run_phalanx(directory: Path) -> float:
    """Return the examples per second in the second of two epochs."""
    from phalanx.data import Pipeline
    from phalanx.data.augment import crop_and_flip, from_depth_major, standardize

    def prepare(batch, seed):  # type: ignore[no-untyped-def]
        images = crop_and_flip(from_depth_major(batch["image"]), padding=4, seed=seed)
        return standardize(images), batch["label"]

    pipeline = Pipeline.from_records(directory / "train.tfrecord", seed=1, raw={"image": "uint8"})
    pipeline = pipeline.map(prepare, seeded=True)
    return time_epoch(iter(pipeline.dataset(BATCH)))


def run_torch(directory: Path, workers: int) -> float:
    """Return the same for a Dataset and a DataLoader."""
    import numpy as np
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.images = np.load(directory / "images.npy", mmap_mode="r")
            self.labels = np.load(directory / "labels.npy")

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            image = torch.from_numpy(self.images[index].copy()).reshape(3, 32, 32)
            padded = functional.pad(image, (4, 4, 4, 4))
            top, left, flip = torch.randint(9, (3,)).tolist()
            image = padded[:, top : top + 32, left : left + 32].float()
            if flip % 2:
                image = image.flip(2)
            return (image - image.mean()) / image.std().clamp(min=1 / 55.4), int(self.labels[index])

    loader = DataLoader(Images(), BATCH, shuffle=True, num_workers=workers, drop_last=True,
                        persistent_workers=workers > 0)  # fmt: skip

    def forever():  # type: ignore[no-untyped-def]
        while True:
            yield from loader

    return time_epoch(forever())


def time_epoch(batches) -> float:  # type: ignore[no-untyped-def]
    steps = COUNT // BATCH
    for _ in range(steps):
        next(batches)
    started = time.perf_counter()
    for _ in range(steps):
        next(batches)
    return steps * BATCH / (time.perf_counter() - started)


def measure(contestant: str, workers: int, directory: Path) -> float:
    """Run one contestant in its own process; with 0 workers, on one core."""
    command = [sys.executable, __file__, contestant, str(workers), str(directory)]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(out.stdout.split()[-1])


def compare(workers: int, title: str, directory: Path) -> None:
    speeds: dict[str, list[float]] = {"phalanx": [], "torch": []}
    for _ in range(ROUNDS):
        for name, rounds in speeds.items():
            rounds.append(measure(name, workers, directory))
    medians = {name: statistics.median(rounds) for name, rounds in speeds.items()}
    for name, speed in medians.items():
        print(f"  {name:10} {speed:10,.0f} examples/s")
    ratio = medians["phalanx"] / medians["torch"]
    print(f"RESULT {title} {ratio:.3g} x-torch goal >= 1", flush=True)


def main() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        print("PyTorch is not installed: pip install torch to compare with it")
        return
    import numpy as np

    from phalanx.data.datasets import make_synthetic
    from phalanx.data.datasets.synthetic import draw

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make_synthetic(directory, count=COUNT)
        drawn = draw(COUNT, 10, 32, 0)
        np.save(directory / "images.npy", drawn.images)
        np.save(directory / "labels.npy", drawn.labels)
        print("one process, one core")
        compare(0, "pipeline-1-process", directory)
        print("all cores; PyTorch with 2 worker processes")
        compare(2, "pipeline-2-workers", directory)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        if sys.argv[2] == "0" and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        data = Path(sys.argv[3])
        is_torch = sys.argv[1] == "torch"
        print(run_torch(data, int(sys.argv[2])) if is_torch else run_phalanx(data))
    else:
        main()
