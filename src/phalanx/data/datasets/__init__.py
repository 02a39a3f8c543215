"""Datasets as TFRecord files: published ones, and synthetic images."""

from __future__ import annotations

from phalanx.data.datasets.cifar10 import convert_cifar10
from phalanx.data.datasets.mnist import convert_mnist
from phalanx.data.datasets.synthetic import make_synthetic

__all__ = ["convert_cifar10", "convert_mnist", "make_synthetic"]
