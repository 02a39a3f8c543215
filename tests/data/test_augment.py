from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from phalanx.data.augment import crop_and_flip, from_depth_major, standardize


def test_depth_major_bytes_become_images() -> None:
    rows = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, -1)
    images = from_depth_major(rows, 4, 4).numpy()
    assert images.shape == (2, 4, 4, 3)
    np.testing.assert_array_equal(images[1, 2, 3], rows[1].reshape(3, 4, 4)[:, 2, 3])


@pytest.mark.parametrize("size", [8, 28, 32, 37, 224])
def test_crops_are_parts_of_the_padded_image(size: int) -> None:
    count, padding = 16, 4
    numbers = np.arange(1, size * size + 1, dtype=np.float32).reshape(1, size, size, 1)
    images = np.repeat(numbers, count, axis=0)
    found = crop_and_flip(images, padding, tf.constant([1, 2], tf.int64)).numpy()
    padded = np.pad(numbers[0, ..., 0], padding)
    offsets, mirrored = set(), 0
    for picture in found[..., 0]:
        matches = [
            (top, left, flipped)
            for top in range(2 * padding + 1)
            for left in range(2 * padding + 1)
            for flipped in (False, True)
            if np.array_equal(
                picture[:, ::-1] if flipped else picture,
                padded[top : top + size, left : left + size],
            )
        ]
        assert len(matches) == 1
        offsets.add(matches[0][:2])
        mirrored += matches[0][2]
    assert len(offsets) > 5
    assert 0 < mirrored < count


def test_seed_determines_the_result() -> None:
    images = np.random.default_rng(0).random((4, 8, 8, 3)).astype(np.float32)
    one, same, other = (crop_and_flip(images, 2, tf.constant([1, n])) for n in (5, 5, 6))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_standardized_images_have_mean_0_and_deviation_1() -> None:
    images = np.random.default_rng(0).random((4, 8, 8, 3)).astype(np.float32) * 200
    found = standardize(images).numpy()
    np.testing.assert_allclose(found.mean(axis=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(axis=(1, 2, 3)), 1, rtol=1e-4)
