"""The free memory of parameter servers, which must hold their part of the variables."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.cluster import Task
from phalanx.cluster.spec import split_address
from phalanx.errors import ConfigurationError

LOG = logging.getLogger("phalanx")

_MEMINFO = "/proc/meminfo"
# The limit of a container. What it uses includes the page cache, which it can do without.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Any host has so much.
_SMALL_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Need:
    """What a parameter server must hold, and what a save in the background holds beside it."""

    task: Task
    address: str
    device: str
    held: int
    copied: int = 0


def check_free_memory(needs: Sequence[Need]) -> None:
    """Raise an error if parameter servers need more memory than their host has; warn of copies.

    Parameter servers at the same address share its memory.
    """
    by_host: dict[str, list[Need]] = {}
    for need in needs:
        by_host.setdefault(split_address(need.address)[0], []).append(need)
    for host, here in by_host.items():
        if sum(need.held + need.copied for need in here) > _SMALL_BYTES:
            files = {path: _read(here[0].device, path) for path in (_MEMINFO, *_LIMITS)}
            if (free := find_free(files)) is not None:
                check_fits(host, here, free)


def check_fits(host: str, needs: Sequence[Need], free: int) -> None:
    """Raise an error if parameter servers of one host need more than its free memory."""
    names = ", ".join(str(need.task) for need in needs)
    held, copied = sum(need.held for need in needs), sum(need.copied for need in needs)
    if held > free:
        raise ConfigurationError(
            f"{names} at {host} must hold {held / 1e9:.2f} GB of variables and slots, but only "
            f"{free / 1e9:.2f} GB of memory are free there: start more parameter servers on other "
            "hosts, or give these more memory"
        )
    if held + copied > free:
        LOG.warning(
            "%s at %s will hold %.2f GB, and a save in the background copies %.2f GB, but only "
            "%.2f GB of memory are free there: set --no-save-in-background, or give it more",
            names, host, held / 1e9, copied / 1e9, free / 1e9,
        )  # fmt: skip


def find_free(files: Mapping[str, str]) -> int | None:
    """Return how many bytes are free, from the contents of files of Linux; None if unknown."""
    free = []
    if found := re.search(r"^MemAvailable:\s+(\d+) kB", files.get(_MEMINFO, ""), re.MULTILINE):
        free.append(int(found[1]) * 1024)
    # Without a limit, the file says `max`.
    limits = [files.get(path, "").strip() for path in _LIMITS]
    free += [int(limit) for limit in limits if limit.isdecimal()]
    return min(free, default=None)


def _read(device: str, path: str) -> str:
    """Read a file on the host of a device; empty if it has none."""
    try:
        with tf.device(device):
            return bytes(tf.io.read_file(path).numpy()).decode(errors="replace")
    except tf.errors.OpError:
        return ""
