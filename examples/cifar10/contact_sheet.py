"""Test images with their predictions: green if the prediction is correct, red if not."""

from pathlib import Path
from typing import Any

import numpy as np
from pictures import Cifar10Images

from phalanx import hooks

ROWS, COLUMNS = 5, 8
CORRECT, WRONG = "#1a7f37", "#cf222e"


class ContactSheet(hooks.Hook):
    """Draws the first test images into a PNG file at the end of training."""

    def __init__(self, file: str, images: Cifar10Images) -> None:
        self.file = Path(file)
        self.images = images

    def end(self, session: Any) -> None:
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.patches import Rectangle  # noqa: PLC0415

        images, inputs, labels = self.images.sample(ROWS * COLUMNS)
        session.pull()
        predictions = np.argmax(session.model(inputs, training=False), axis=-1)
        classes = self.images.classes()
        figure = Figure(figsize=(COLUMNS * 1.35, ROWS * 1.6), layout="constrained")
        axes = figure.subplots(ROWS, COLUMNS).ravel()
        for axis in axes:
            axis.set_axis_off()
        for axis, image, prediction, label in zip(axes, images, predictions, labels, strict=False):
            is_correct = prediction == int(label)
            color = CORRECT if is_correct else WRONG
            truth = "" if is_correct else f" ({classes[int(label)]})"
            axis.set_title(classes[prediction] + truth, color=color, fontsize=8.5, pad=4)
            axis.imshow(image, interpolation="nearest")
            height, width = image.shape[:2]
            axis.add_patch(
                Rectangle((-0.5, -0.5), width, height, fill=False, edgecolor=color, linewidth=4)
            )
        correct = int(np.sum(predictions == labels.numpy()))
        hint = "" if correct == len(predictions) else "; true labels in brackets"
        figure.suptitle(f"{correct} of {len(predictions)} correct{hint}", fontsize=11)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.file, dpi=110)
