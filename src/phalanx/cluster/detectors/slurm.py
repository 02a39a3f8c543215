"""Slurm: the tasks of one `srun`, numbered by SLURM_PROCID.

The first task is the chief and the others are workers, unless PHALANX_SHAPE says how many of each
role there are. Task k of a node listens on the job's port + k; PHALANX_PORT sets that port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from phalanx.cluster.shape import VARIABLE, parse_shape, place, read_port
from phalanx.cluster.spec import PEERS, Cluster
from phalanx.cluster.tf_config import TFConfig, loads
from phalanx.errors import ClusterError


def detect(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """Only inside a step: a batch script outside `srun` has nobody beside it."""
    if "SLURM_STEP_NODELIST" not in environ or not environ.get("SLURM_PROCID", "").isdecimal():
        return None
    hosts = _slots(environ)
    if len(hosts) == 1:
        return None
    tasks = parse_shape(environ.get(VARIABLE) or f"chief=1,worker={len(hosts) - 1}")
    if len(tasks) != len(hosts):
        raise ClusterError(
            f"{VARIABLE} has {len(tasks)} tasks, but srun started {len(hosts)}: "
            f"start as many (srun --ntasks={len(tasks)})"
        )
    port = read_port(environ, _job_port(environ.get("SLURM_JOB_ID", "")))
    addresses = {
        task: f"{node}:{port + slot}" for task, (node, slot) in zip(tasks, hosts, strict=True)
    }
    trainers = {task: at for task, at in addresses.items() if task.role in PEERS}
    task = place(tasks, int(environ["SLURM_PROCID"]), "SLURM_PROCID")
    return loads(TFConfig(Cluster(trainers), task).dumps(), "what Slurm says of the cluster")


def _slots(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """Node and number on that node of every task, in the order in which Slurm numbers them."""
    nodes = expand_nodes(environ["SLURM_STEP_NODELIST"])
    counts = list(_expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", "1")))
    slots = [
        (node, slot) for node, count in zip(nodes, counts, strict=False) for slot in range(count)
    ]
    distribution = environ.get("SLURM_DISTRIBUTION", "block").partition(":")[0]
    if distribution == "cyclic":
        return sorted(slots, key=lambda each: each[1])
    if distribution != "block":
        raise ClusterError(
            f"SLURM_DISTRIBUTION is {distribution!r}, which does not tell where the tasks are: "
            "use srun --distribution=block or cyclic, or set TF_CONFIG"
        )
    return slots


def expand_nodes(nodelist: str) -> list[str]:
    """The names in Slurm's short form.

    >>> expand_nodes("gpu[01-03,7],login")
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login']
    """
    names = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        names += _expand_brackets(part)
    return names


def _expand_brackets(pattern: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", pattern)
    if not match:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [
        f"{before}{number}{rest}"
        for number in _expand_ranges(match[1])
        for rest in _expand_brackets(after)
    ]


def _expand_ranges(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            yield first
        elif not (first.isdecimal() and last.isdecimal()):
            raise ClusterError(f"{part!r} in Slurm's list of nodes is not a range of numbers")
        else:
            for number in range(int(first), int(last) + 1):
                yield str(number).zfill(len(first))


def _expand_counts(text: str) -> Iterator[int]:
    """`2(x3),1` is 2, 2, 2, 1."""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        for _ in range(int(times or 1)):
            yield int(count)


def _job_port(job: str) -> int:
    """A range of 64 ports for each job, below the ports that the kernel hands out by itself."""
    return 10000 + (int(job) % 340 * 64 if job.isdecimal() else 0)
