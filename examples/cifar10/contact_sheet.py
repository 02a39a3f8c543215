"""Test pictures with what the network says of them: green where it is right, red where not."""

from pathlib import Path
from typing import Any

import numpy as np
from pictures import Pictures

from phalanx import hooks

ROWS, COLUMNS = 5, 8
RIGHT, WRONG = "#1a7f37", "#cf222e"


class ContactSheet(hooks.Hook):
    """Draws the first test pictures into a PNG file, when training is done."""

    def __init__(self, file: str, pictures: Pictures) -> None:
        self.file = Path(file)
        self.pictures = pictures

    def end(self, session: Any) -> None:
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.patches import Rectangle  # noqa: PLC0415

        images, inputs, labels = self.pictures.sample(ROWS * COLUMNS)
        session.pull()
        guesses = np.argmax(session.model(inputs, training=False), axis=-1)
        classes = self.pictures.classes()
        figure = Figure(figsize=(COLUMNS * 1.35, ROWS * 1.6), layout="constrained")
        places = figure.subplots(ROWS, COLUMNS).ravel()
        for place in places:
            place.set_axis_off()
        for place, image, guess, label in zip(places, images, guesses, labels, strict=False):
            is_right = guess == int(label)
            color = RIGHT if is_right else WRONG
            text = classes[guess] if is_right else f"{classes[guess]} ({classes[int(label)]})"
            place.set_title(text, color=color, fontsize=8.5, pad=4)
            place.imshow(image, interpolation="nearest")
            height, width = image.shape[:2]
            place.add_patch(
                Rectangle((-0.5, -0.5), width, height, fill=False, edgecolor=color, linewidth=4)
            )
        right = int(np.sum(guesses == labels.numpy()))
        hint = "" if right == len(guesses) else "; in brackets what the wrong ones are"
        figure.suptitle(f"{right} of {len(guesses)} right{hint}", fontsize=11)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.file, dpi=110)
