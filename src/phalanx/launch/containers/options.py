"""The options of the backends whose tasks run in containers."""

from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.kube.manifest import Manifest, load
from phalanx.launch.options import (
    DATA_WORKERS,
    NO_ELASTIC,
    RESOURCES,
    FilePath,
    IntegerRange,
    Option,
    OptionValues,
)
from phalanx.launch.values import parse_label

# The largest number of a user or group.
MAX_ID = 2**31 - 1
MOUNT = Option(
    "--mount",
    "Mount /host/path, a volume or nfs://server/path; add :ro for read-only. Can be repeated.",
    Mount.parse,
    "SOURCE:TARGET",
    multiple=True,
)
LABEL = Option(
    "--label",
    "Add a label to everything that is created. Can be repeated.",
    parse_label,
    "NAME=VALUE",
    multiple=True,
)
CREDENTIALS = Option(
    "--credentials",
    "A key file for Google Cloud. It is mounted and GOOGLE_APPLICATION_CREDENTIALS names it.",
    FilePath(absolute=True),
    "FILE",
)
TENSORBOARD_CREDENTIALS = Option(
    "--tensorboard-credentials",
    "A key file for TensorBoard, which does not get that of --credentials.",
    FilePath(absolute=True),
    "FILE",
)
RUN_AS_USER = Option(
    "--run-as-user",
    "The user that the tasks run as  [default: that of the image, which must not be root]",
    IntegerRange(0, MAX_ID),
    "UID",
)
CONTAINER = (
    DATA_WORKERS,
    Option("--image", "The image that the tasks run in.", metavar="IMAGE"),
    MOUNT,
    LABEL,
    CREDENTIALS,
    Option("--python", "The Python of the image.", default="python"),
    *RESOURCES,
    *NO_ELASTIC,
)
PATCH = Option(
    "--patch",
    "Merge this file into what is rendered. Can be repeated.",
    FilePath(),
    "YAML",
    multiple=True,
)


def make_container(values: OptionValues) -> Container:
    if not values["image"]:
        raise JobError("no image is set to run the tasks in: add --image")
    return Container(
        values["image"],
        values["python"],
        values["mount"],
        dict(values["label"]),
        values["credentials"],
        values.get("tensorboard_credentials"),
        values.get("run_as_user"),
    )


def read_patches(values: OptionValues) -> tuple[Manifest, ...]:
    return tuple(patch for path in values.get("patch", ()) for patch in load(Path(path)))
