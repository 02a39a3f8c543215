"""Train a residual network on CIFAR-10, in one process, on several devices or on several hosts.

    phalanx dataset cifar10 --out data/cifar10
    python examples/cifar10/main.py --data-dir data/cifar10 --model-dir runs/cifar10
    phalanx run --no-chief --workers 2 examples/cifar10/main.py --data-dir data/cifar10 \\
        --num-layers 20 --schedule one-cycle --model-dir runs/hour
"""

import argparse
import os
from typing import Any

# oneDNN makes training much faster on CPUs, but is off by default on many of them.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from contact_sheet import ContactSheet
from experiment import Cifar10, Schedule
from pictures import Cifar10Images

import phalanx
from phalanx.train.flags import ObsoleteFlag

# The default settings of each schedule; flags override them.
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
BATCH_SIZE = 128


class InputImages(phalanx.hooks.Hook):
    """Writes some training images for TensorBoard."""

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
    add("--data-dir", required=True, help="the output directory of `phalanx dataset cifar10`")
    add("--num-layers", type=int, default=44, help="6n+2: 20, 32, 44, 56, 110")
    add("--train-batch-size", type=int, metavar="N", dest="global_batch_size",
        help="images per update; in asynchronous training, the trainers divide it; default: 128, "
        "rounded down to a multiple of the number of replicas")  # fmt: skip
    add("--eval-batch-size", type=int, default=100, metavar="N")
    add("--schedule", choices=list(RECIPES), default="staged",
        help="staged: x 1, 0.1, 0.01, 0.002 at epochs 82, 123, 300; one-cycle: warm-up, then "
        "cosine decay, for runs of an hour")  # fmt: skip
    add(
        "--learning-rate",
        type=float,
        metavar="X",
        help="the highest rate: 0.1, or 0.2 with one-cycle",
    )
    add("--momentum", type=float, default=0.9, metavar="X")
    add("--weight-decay", type=float, metavar="X", help="2e-4, or 5e-4 with one-cycle")
    add("--batch-norm-decay", type=float, default=0.9, metavar="X")
    add("--batch-norm-epsilon", type=float, default=1e-5, metavar="X")
    add("--label-smoothing", type=float, metavar="X", help="0, or 0.1 with one-cycle")
    add("--use-distortion", "--use-distortion-for-training", default=True,
        action=argparse.BooleanOptionalAction,
        help="augment with random crops and flips")  # fmt: skip
    add("--change-light", action=argparse.BooleanOptionalAction, default=False,
        help="also change brightness and contrast at random")  # fmt: skip
    add("--many-views", action=argparse.BooleanOptionalAction,
        help="test-time augmentation with six views; the default with one-cycle")  # fmt: skip
    add("--data-format", choices=["channels_first", "channels_last"],
        help="default: channels_first if there is a GPU")  # fmt: skip
    add("--num-gpus", type=int, metavar="N", help="default: all GPUs")
    add("--simulate-gpus", action="store_true",
        help="split the CPU into --num-gpus devices, to try it without GPUs")  # fmt: skip
    add("--variable-strategy", choices=list(VARIABLES),
        help="with several GPUs: the weights on each GPU, or once on the host")  # fmt: skip
    add("--num-intra-threads", type=int, default=0, metavar="N",
        help="threads per operation; 0: one per core")  # fmt: skip
    add("--num-inter-threads", type=int, default=0, metavar="N",
        help="operations at the same time; 0: TensorFlow decides")  # fmt: skip
    add("--log-device-placement", action=argparse.BooleanOptionalAction, default=False)
    add("--contact-sheet", metavar="FILE",
        help="write a PNG of test images with their predictions")  # fmt: skip
    add("--log-shapes", action="store_true", help="log the shape of the image after each unit")
    add_flags_of_2017(parser)
    phalanx.RunConfig.add_flags(parser)
    arguments = parser.parse_args()
    if arguments.global_batch_size is None:
        arguments.global_batch_size, arguments.round_batch_size = BATCH_SIZE, True
    recipe = dict(RECIPES[arguments.schedule])
    if "train_steps" in arguments:
        recipe["epochs"] = None
    for name, value in recipe.items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
    return arguments


def add_flags_of_2017(parser: argparse.ArgumentParser) -> None:
    """Accept the other flags of TensorFlow's CIFAR-10 tutorial of 2017."""
    add = parser.add_argument_group("flags of TensorFlow's CIFAR-10 tutorial").add_argument
    add("--job-dir", dest="model_dir", default=argparse.SUPPRESS, metavar="DIR",
        help="the same as --model-dir")  # fmt: skip
    add("--is-cpu-ps", dest="variable_strategy", action="store_const", const="CPU",
        help="the same as --variable-strategy CPU")  # fmt: skip
    add("--no-is-cpu-ps", dest="variable_strategy", action="store_const", const="GPU",
        help="the same as --variable-strategy GPU")  # fmt: skip
    add("--num-workers", action=ObsoleteFlag, help="TF_CONFIG says how many workers there are")
    add("--run-experiment", action=ObsoleteFlag, help="every run is that of an experiment")
    add("--force-gpu-compatible", action=ObsoleteFlag, help="TensorFlow 2 has no such setting")


def choose_devices(arguments: argparse.Namespace) -> dict[str, Any]:
    """Configure devices and threads; must run before TensorFlow executes anything."""
    settings: dict[str, Any] = {}
    if arguments.num_intra_threads:
        tf.config.threading.set_intra_op_parallelism_threads(arguments.num_intra_threads)
    if arguments.num_inter_threads:
        tf.config.threading.set_inter_op_parallelism_threads(arguments.num_inter_threads)
    tf.debugging.set_log_device_placement(arguments.log_device_placement)
    if arguments.variable_strategy:
        settings["variables"] = VARIABLES[arguments.variable_strategy]
    if arguments.simulate_gpus:
        devices = [tf.config.LogicalDeviceConfiguration()] * (arguments.num_gpus or 1)
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], devices
        )
        settings["devices"] = tuple(f"CPU:{number}" for number in range(len(devices)))
    elif arguments.num_gpus is not None:
        settings["devices"] = arguments.num_gpus
    return settings


def main() -> None:
    arguments = parse_flags()
    config = phalanx.RunConfig.from_flags(arguments, **choose_devices(arguments))
    experiment = Cifar10(
        Cifar10Images(arguments.data_dir, arguments.use_distortion, arguments.change_light),
        Schedule(arguments.schedule, arguments.learning_rate, config.epochs, config.train_steps),
        num_layers=arguments.num_layers,
        eval_batch_size=arguments.eval_batch_size,
        momentum=arguments.momentum,
        weight_decay=arguments.weight_decay,
        batch_norm_decay=arguments.batch_norm_decay,
        batch_norm_epsilon=arguments.batch_norm_epsilon,
        label_smoothing=arguments.label_smoothing,
        many_views=arguments.many_views,
        data_format=arguments.data_format,
        log_shapes=arguments.log_shapes,
    )
    hooks: list[phalanx.hooks.Hook] = [InputImages(experiment)]
    if arguments.contact_sheet:
        hooks.append(ContactSheet(arguments.contact_sheet, experiment.images))
    result = phalanx.run(experiment, config, hooks=hooks)
    if result.metrics:
        print(f"\n  accuracy      {result.metrics['accuracy']:.2%} on the test images")
        if result.examples_per_second:
            print(f"  speed         {result.examples_per_second:,.0f} examples/s")
        if arguments.contact_sheet:
            print(f"  images        {arguments.contact_sheet}")
        print(f"  checkpoints   {result.model_dir} (step {result.step})")
        print(f"  TensorBoard   tensorboard --logdir {result.model_dir}\n")


if __name__ == "__main__":
    main()
