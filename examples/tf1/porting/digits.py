"""The data of all three programs: noisy images of ten patterns, as NumPy arrays."""

import numpy as np

CLASSES, PIXELS = 10, 64


def read(split):
    """Return the images and the labels of a split, `train` or `test`."""
    patterns = np.random.RandomState(0).uniform(size=(CLASSES, PIXELS))
    random = np.random.RandomState(1 if split == "train" else 2)
    labels = random.randint(CLASSES, size=6000 if split == "train" else 2000)
    images = patterns[labels] + random.normal(scale=0.7, size=(len(labels), PIXELS))
    return images.astype(np.float32), labels.astype(np.int32)
