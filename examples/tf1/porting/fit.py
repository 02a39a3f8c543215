"""Stage 3: the idiomatic program: a compiled Keras model and `phalanx.fit`.

python examples/tf1/porting/fit.py
phalanx run --ps 1 --workers 2 examples/tf1/porting/fit.py
"""

import phalanx  # isort: skip - before Keras, so that the process can join a cluster

import digits
import keras

model = keras.Sequential(
    [
        keras.Input((digits.PIXELS,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(digits.CLASSES),
    ]
)
model.compile(
    keras.optimizers.Adam(0.001),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
images, labels = digits.read("train")
history = phalanx.fit(
    model,
    images,
    labels,
    batch_size=60,
    epochs=10,
    validation_data=digits.read("test"),
    verbose=0,
)
print(f"accuracy {history.history['val_accuracy'][-1]:.4f}")
