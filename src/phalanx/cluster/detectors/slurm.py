"""Slurm: the tasks of one `srun`, numbered by SLURM_PROCID.

The first task is the chief and the others are workers, unless PHALANX_SHAPE gives the number of
tasks of each role. Task k of a node listens on the job's port + k; PHALANX_PORT sets that port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from phalanx.cluster.job_environment import SHAPE_VARIABLE, find_task, parse_shape, read_port
from phalanx.cluster.spec import PEERS, Cluster
from phalanx.cluster.tf_config import TFConfig, loads
from phalanx.errors import ClusterError


def detect(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """Read the variables of a step; a batch script outside of `srun` is a single process."""
    if "SLURM_STEP_NODELIST" not in environ or not environ.get("SLURM_PROCID", "").isdecimal():
        return None
    nodes = _locate_tasks(environ)
    if len(nodes) == 1:
        return None
    tasks = parse_shape(environ.get(SHAPE_VARIABLE) or f"chief=1,worker={len(nodes) - 1}")
    if len(tasks) != len(nodes):
        raise ClusterError(
            f"{SHAPE_VARIABLE} has {len(tasks)} tasks, but srun started {len(nodes)}: "
            f"start as many (srun --ntasks={len(tasks)})"
        )
    port = read_port(environ, _job_port(environ.get("SLURM_JOB_ID", "")))
    addresses = {
        task: f"{node}:{port + local_index}"
        for task, (node, local_index) in zip(tasks, nodes, strict=True)
        if task.role in PEERS
    }
    task = find_task(tasks, int(environ["SLURM_PROCID"]), "SLURM_PROCID")
    return loads(TFConfig(Cluster(addresses), task).dumps(), "the cluster described by Slurm")


def _locate_tasks(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return each task's node and its index on that node, in the order of SLURM_PROCID."""
    nodes = expand_nodes(environ["SLURM_STEP_NODELIST"])
    counts = list(_expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", "1")))
    located = [
        (node, index) for node, count in zip(nodes, counts, strict=False) for index in range(count)
    ]
    distribution = environ.get("SLURM_DISTRIBUTION", "block").partition(":")[0]
    if distribution == "cyclic":
        return sorted(located, key=lambda each: each[1])
    if distribution != "block":
        raise ClusterError(
            f"SLURM_DISTRIBUTION is {distribution!r}, which does not locate the tasks: "
            "use srun --distribution=block or cyclic, or set TF_CONFIG"
        )
    return located


def expand_nodes(nodelist: str) -> list[str]:
    """Expand Slurm's compact list of nodes.

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
            raise ClusterError(f"{part!r} in Slurm's list of nodes is not a numeric range")
        else:
            for number in range(int(first), int(last) + 1):
                yield str(number).zfill(len(first))


def _expand_counts(text: str) -> Iterator[int]:
    """Expand `2(x3),1` to 2, 2, 2, 1."""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        for _ in range(int(times or 1)):
            yield int(count)


def _job_port(job: str) -> int:
    """Return the first of 64 ports of this job, below the kernel's ephemeral ports."""
    return 10000 + (int(job) % 340 * 64 if job.isdecimal() else 0)
