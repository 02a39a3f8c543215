"""CIFAR-10: a residual network, in one process, on many devices or on many hosts.

    phalanx dataset cifar10 --out data/cifar10
    python examples/cifar10/main.py --data-dir data/cifar10 --model-dir runs/cifar10
    phalanx run --no-chief --workers 2 examples/cifar10/main.py --data-dir data/cifar10 \\
        --num-layers 20 --schedule one-cycle --model-dir runs/hour
"""

import argparse
import os
from typing import Any

# oneDNN makes training on a CPU much faster, but is off by default on many.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from contact_sheet import ContactSheet
from experiment import Cifar10, Schedule
from pictures import Pictures

import phalanx

# What each schedule does best with; any of it can be set by a flag.
RECIPES = {
    "staged": {
        "epochs": 350,
        "learning_rate": 0.1,
        "weight_decay": 2e-4,
        "label_smoothing": 0.0,
        "many_views": False,
    },
    "one-cycle": {
        "epochs": 60,
        "learning_rate": 0.2,
        "weight_decay": 5e-4,
        "label_smoothing": 0.1,
        "many_views": True,
    },
}
VARIABLES = {"CPU": "cpu", "GPU": "device"}


class InputPictures(phalanx.hooks.Hook):
    """Shows some of what the network is trained on, in TensorBoard."""

    def __init__(self, experiment: Cifar10) -> None:
        self.experiment = experiment

    def begin(self, session: Any) -> None:
        images, _ = next(iter(self.experiment.train_data(phalanx.Context(batch_size=8))))
        low = tf.reduce_min(images, axis=(1, 2, 3), keepdims=True)
        high = tf.reduce_max(images, axis=(1, 2, 3), keepdims=True)
        session.summaries.write_images("train", 0, "input", (images - low) / (high - low))


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data-dir", required=True, help="where `phalanx dataset cifar10` wrote the pictures")
    add("--num-layers", type=int, default=44, help="6n+2: 20, 32, 44, 56, 110")
    add("--train-batch-size", type=int, default=128, metavar="N", dest="global_batch_size",
        help="pictures in an update in step; asynchronously, a trainer takes a share")  # fmt: skip
    add("--eval-batch-size", type=int, default=100, metavar="N")
    add("--schedule", choices=list(RECIPES), default="staged",
        help="staged: x 1, 0.1, 0.01, 0.002 at epochs 82, 123, 300; one-cycle: up and down once, "
        "for runs of an hour")  # fmt: skip
    add("--learning-rate", type=float, metavar="X", help="the highest: 0.1, or 0.2 in one cycle")
    add("--momentum", type=float, default=0.9, metavar="X")
    add("--weight-decay", type=float, metavar="X", help="2e-4, or 5e-4 in one cycle")
    add("--batch-norm-decay", type=float, default=0.9, metavar="X")
    add("--label-smoothing", type=float, metavar="X", help="none, or 0.1 in one cycle")
    add("--use-distortion", action=argparse.BooleanOptionalAction, default=True,
        help="cut out of a frame, mirror")  # fmt: skip
    add("--change-light", action=argparse.BooleanOptionalAction, default=False,
        help="change brightness and contrast too")  # fmt: skip
    add("--many-views", action=argparse.BooleanOptionalAction,
        help="test with each picture in six ways: not staged, but in one cycle")  # fmt: skip
    add("--data-format", choices=["channels_first", "channels_last"],
        help="channels first where there is a GPU, if not set")  # fmt: skip
    add("--num-gpus", type=int, metavar="N", help="all of them, if not set")
    add("--simulate-gpus", action="store_true",
        help="cut the CPU into --num-gpus devices, to try it without any")  # fmt: skip
    add("--variable-strategy", choices=list(VARIABLES),
        help="with several GPUs: a copy of the weights on each, or one on the host")  # fmt: skip
    add("--num-intra-threads", type=int, default=0, metavar="N",
        help="threads of one operation; 0: as many as there are cores")  # fmt: skip
    add("--contact-sheet", metavar="FILE",
        help="a PNG of test pictures with what the network says of them")  # fmt: skip
    add("--log-shapes", action="store_true", help="log the shape of the image after each unit")
    phalanx.RunConfig.add_flags(parser)
    arguments = parser.parse_args()
    recipe = dict(RECIPES[arguments.schedule])
    if "train_steps" in arguments:
        recipe["epochs"] = None
    for name, value in recipe.items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
    return arguments


def choose_devices(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of devices and threads; must come before anything else in TensorFlow."""
    settings: dict[str, Any] = {}
    if arguments.num_intra_threads:
        tf.config.threading.set_intra_op_parallelism_threads(arguments.num_intra_threads)
    if arguments.variable_strategy:
        settings["variables"] = VARIABLES[arguments.variable_strategy]
    if arguments.simulate_gpus:
        parts = [tf.config.LogicalDeviceConfiguration()] * (arguments.num_gpus or 1)
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
        settings["devices"] = tuple(f"CPU:{number}" for number in range(len(parts)))
    elif arguments.num_gpus is not None:
        settings["devices"] = arguments.num_gpus
    return settings


def main() -> None:
    arguments = parse_flags()
    config = phalanx.RunConfig.from_flags(arguments, **choose_devices(arguments))
    experiment = Cifar10(
        Pictures(arguments.data_dir, arguments.use_distortion, arguments.change_light),
        Schedule(arguments.schedule, arguments.learning_rate, config.epochs, config.train_steps),
        num_layers=arguments.num_layers,
        eval_batch_size=arguments.eval_batch_size,
        momentum=arguments.momentum,
        weight_decay=arguments.weight_decay,
        batch_norm_decay=arguments.batch_norm_decay,
        label_smoothing=arguments.label_smoothing,
        many_views=arguments.many_views,
        data_format=arguments.data_format,
        log_shapes=arguments.log_shapes,
    )
    hooks: list[phalanx.hooks.Hook] = [InputPictures(experiment)]
    if arguments.contact_sheet:
        hooks.append(ContactSheet(arguments.contact_sheet, experiment.pictures))
    result = phalanx.run(experiment, config, hooks=hooks)
    if result.metrics:
        print(f"\n  accuracy      {result.metrics['accuracy']:.2%} on the test pictures")
        if result.examples_per_second:
            print(f"  speed         {result.examples_per_second:,.0f} examples/s")
        if arguments.contact_sheet:
            print(f"  pictures      {arguments.contact_sheet}")
        print(f"  checkpoints   {result.model_dir} (step {result.step})")
        print(f"  TensorBoard   tensorboard --logdir {result.model_dir}\n")


if __name__ == "__main__":
    main()
