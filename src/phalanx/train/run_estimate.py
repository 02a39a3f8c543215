"""What a run will need of each task: memory, messages and files, computed before it starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from phalanx.cluster import Cluster, Role, Task, TFConfig
from phalanx.errors import DataError
from phalanx.train.config import RunConfig
from phalanx.train.experiment import Experiment
from phalanx.train.model_dir.table_slices import PART_BYTES
from phalanx.train.runtime.topology import Strategy, Topology, resolve_topology
from phalanx.train.setting_checks import check_fits_ps
from phalanx.train.step.step_function import StepFunction
from phalanx.train.task_run import TaskRun
from phalanx.train.types import Batch, KerasVariable, Tensor
from phalanx.train.variables.described_variable import DescribedVariable
from phalanx.train.variables.host_variables import HostVariables
from phalanx.train.variables.sparse_tables import TracedLookups, is_table
from phalanx.train.variables.store_size import StoreSize, add_replicas, count_bytes, measure_stores
from phalanx.train.variables.table import Table

RUNTIME_BYTES = 600_000_000
"""What a process with TensorFlow and a small model takes."""
COPY_RATE = 1e9
"""Bytes per second that a host copies in memory."""
WRITE_RATE = 0.25e9
"""Bytes per second that a host writes to a checkpoint, and reads back to verify them."""


@dataclass(frozen=True)
class TaskEstimate:
    """What one task holds, and what it sends and receives while each trainer makes one step."""

    task: Task
    buffers: int = 0
    weight_bytes: int = 0
    """The weights and the state that the task holds."""
    slot_bytes: int = 0
    """The slots of the optimizer."""
    working_bytes: int = 0
    """Gradients, rows of a batch, copies for a save in the background."""
    sent_bytes: int = 0
    received_bytes: int = 0
    saved_bytes: int = 0
    """The part of a checkpoint that the task writes."""

    @property
    def memory_bytes(self) -> int:
        return self.weight_bytes + self.slot_bytes + self.working_bytes + RUNTIME_BYTES


@dataclass(frozen=True)
class RunEstimate:
    """What a run needs; activations of the layers are not included."""

    strategy: str
    tasks: list[TaskEstimate]
    looked_up: dict[str, int]
    """How many rows of each sparse table the first batch of a trainer looks up."""
    stall_seconds: float
    """How long a save stops the training."""

    @property
    def checkpoint_bytes(self) -> int:
        return sum(task.saved_bytes for task in self.tasks)


def estimate_run(experiment: Experiment, config: RunConfig, cluster: Cluster) -> RunEstimate:
    """Build the model and read one batch, without a cluster; estimate what each task needs.

    Args:
        experiment: What to train.
        config: How to train.
        cluster: The tasks; their addresses are not used.
    """
    task = cluster.chief()
    topology = resolve_topology(TFConfig(cluster, task), config)
    run = TaskRun(experiment, config, topology, ())
    step, host_variables, data = run.build(topology.context_for(config, topology.trainers[0]))
    if topology.strategy.has_ps:
        check_fits_ps(config, step, host_variables)
    batch = next(iter(data.train), None)
    if batch is None:
        raise DataError("train_data gave no batch: check its paths and filters")
    looked_up = _count_rows(step, batch)
    sizes = _Sizes.measure(host_variables, config, looked_up)
    estimate = _estimate_ps if topology.strategy.has_ps else _estimate_all_reduce
    tasks = estimate(topology, host_variables, sizes, config.ps_replicas)
    paths = {id(v): v.path for v in host_variables.trainable}
    return RunEstimate(
        str(topology.strategy), tasks, {paths[key]: n for key, n in looked_up.items()},
        _estimate_stall(tasks, sizes),
    )  # fmt: skip


@dataclass(frozen=True)
class _Sizes:
    """The bytes of the model's variables, by what happens to them."""

    dense: int
    """The weights that every trainer reads in each step."""
    copied_dense: int
    """Those of them that the host has a copy of: all but the large ones."""
    copied_slots: int
    """The slots of these."""
    state: int
    changing_state: int
    small_tables: int
    """The sparse tables, and their slots, that are saved by the chief."""
    large: int
    """The large variables, and their slots, that are saved by the tasks which hold them."""
    rows: int
    """The rows that one step of a trainer looks up, and their indices."""
    copied: int
    """The part of these that a save in the background copies."""
    part: int
    """How much of these a task holds while it writes a part of a checkpoint."""
    in_background: bool

    @classmethod
    def measure(
        cls, host_variables: HostVariables, config: RunConfig, looked_up: dict[int, int]
    ) -> _Sizes:
        dense = [v for v in host_variables.trainable if not is_table(v)]
        others = [*host_variables.slots.shared, *_list_slots(host_variables)]
        tables = [v for v in _list_described(host_variables) if is_table(v)]
        large = count_bytes(*(v for v in _list_described(host_variables) if v.is_large))
        changing = [v for i, v in enumerate(host_variables.state) if i not in host_variables.fixed]
        return cls(
            dense=count_bytes(*dense),
            copied_dense=count_bytes(*(v for v in dense if not _is_described(v))),
            copied_slots=count_bytes(*(v for v in others if not _is_described(v))),
            state=count_bytes(*host_variables.state),
            changing_state=count_bytes(*changing),
            small_tables=count_bytes(*(t for t in tables if not t.is_large)),
            large=large,
            copied=measure_stores(host_variables, 1)[0].copied * config.save_in_background,
            part=min(PART_BYTES, large),
            rows=sum(
                looked_up.get(id(v), 0) * (count_bytes(v) // int(v.shape[0]) + _key_bytes(v))
                for v in host_variables.trainable
                if isinstance(v, Table)
            ),
            in_background=config.save_in_background,
        )


def _estimate_all_reduce(
    topology: Topology, host_variables: HostVariables, sizes: _Sizes, replicas: int
) -> list[TaskEstimate]:
    """Each trainer holds the whole model; the chief has a host copy, which it saves."""
    trainers = len(topology.trainers)
    ring = 2 * (trainers - 1) * (sizes.dense + sizes.changing_state) // trainers
    messages = ring + (trainers - 1) * sizes.rows
    described = _list_described(host_variables)
    described_slots = count_bytes(*(v for v in described if not v.trainable))
    described_weights = count_bytes(*described) - described_slots
    found = []
    for task in topology.trainers:
        leads = task == topology.task
        # Each variable is in a buffer, and once more on the host if it is not only described.
        found.append(
            TaskEstimate(
                task,
                buffers=len(host_variables.all()),
                weight_bytes=2 * (sizes.copied_dense + sizes.state) + described_weights,
                slot_bytes=2 * sizes.copied_slots + described_slots,
                working_bytes=sizes.dense + 2 * sizes.rows + (sizes.copied + sizes.part) * leads,
                sent_bytes=messages,
                received_bytes=messages,
                saved_bytes=_whole(sizes) * leads,
            )
        )
    return found


def _estimate_ps(
    topology: Topology, host_variables: HostVariables, sizes: _Sizes, replicas: int
) -> list[TaskEstimate]:
    """Parameter servers hold the buffers; trainers read the dense ones and some rows."""
    servers = topology.cluster.tasks(Role.PS)
    tables = [variable for variable in host_variables.trainable if is_table(variable)]
    is_async = topology.strategy is Strategy.ASYNC_PS
    trainers = len(topology.trainers)
    # An asynchronous step sends the state before and after it, and its slope.
    up = sizes.dense + sizes.rows + sizes.changing_state * (3 if is_async else 1)
    down = sizes.dense + sizes.rows + sizes.changing_state
    # A synchronous chief averages the state. Sums of gradients stay on the parameter servers.
    relayed = 0 if is_async else sizes.changing_state
    found = []
    for task in topology.cluster.tasks(Role.CHIEF, Role.WORKER):
        trains, leads = task in topology.trainers, task == topology.task
        host = TaskEstimate(task)
        if leads:
            host = TaskEstimate(
                task,
                buffers=len(host_variables.all()) - len(_list_described(host_variables)),
                weight_bytes=sizes.copied_dense + sizes.state + sizes.small_tables,
                slot_bytes=sizes.copied_slots,
                saved_bytes=_whole(sizes) - sizes.large,
            )
        found.append(
            TaskEstimate(
                task,
                host.buffers,
                host.weight_bytes,
                host.slot_bytes,
                working_bytes=trains * 2 * (sizes.dense + sizes.rows) + leads * relayed,
                sent_bytes=trains * up * replicas + leads * relayed,
                received_bytes=trains * down + leads * relayed,
                saved_bytes=host.saved_bytes,
            )
        )
    shares = measure_stores(host_variables, len(servers))
    weights = add_replicas([s.dense + s.tables + s.state for s in shares], replicas)
    slots = add_replicas([s.slots for s in shares], replicas)
    for number, (task, share) in enumerate(zip(servers, shares, strict=True)):
        part = _find_part(share, sizes, count_bytes(*tables))
        found.append(
            TaskEstimate(
                task,
                share.buffers * replicas,
                weights[number],
                slots[number],
                working_bytes=share.copied * sizes.in_background + min(sizes.part, share.large),
                sent_bytes=int(part * (trainers * down + relayed)),
                received_bytes=int(part * (trainers * up * replicas + relayed)),
                saved_bytes=share.large,
            )
        )
    return found


def _find_part(share: StoreSize, sizes: _Sizes, tables: int) -> float:
    """Return the part of all messages that one parameter server sends or receives."""
    dense = share.dense / max(1, sizes.dense) * (sizes.dense + sizes.changing_state)
    rows = share.tables / max(1, tables) * sizes.rows
    return (dense + rows) / max(1, sizes.dense + sizes.changing_state + sizes.rows)


@dataclass
class _CountedLookups(TracedLookups):
    """Counts the rows that a step looks up, and gives it zeros."""

    counts: list[tuple[int, Tensor]] = field(default_factory=list)

    def look_up_ids(self, table: Table, ids: Tensor, is_counted: Tensor | None = None) -> Tensor:
        return self.look_up(table, ids)

    def look_up(self, variable: KerasVariable, indices: Tensor) -> Tensor:
        unique, _ = tf.unique(tf.reshape(tf.cast(indices, tf.int64), [-1]))
        self.counts.append((id(variable), tf.size(unique)))
        shape = tf.concat([tf.shape(indices), variable.shape[1:]], 0)
        zeros = tf.zeros(shape, variable.dtype)
        return tf.ensure_shape(zeros, [*indices.shape, *variable.shape[1:]])


def _count_rows(step: StepFunction, batch: Batch) -> dict[int, int]:
    """Return how many different rows of each table a batch looks up, by the id of the table."""
    tables: list[int] = []

    def count(batch: Batch) -> list[Tensor]:
        lookups = _CountedLookups()
        with keras.StatelessScope(), lookups.activate():
            step.call_user_step(batch)
        tables.extend(table for table, _ in lookups.counts)
        return [number for _, number in lookups.counts]

    if step.has_model_steps:
        return {}
    counts = tf.function(count, autograph=False)(batch)
    rows: Counter[int] = Counter()
    for table, number in zip(tables, counts, strict=True):
        rows[table] += int(number)
    return dict(rows)


def _estimate_stall(tasks: list[TaskEstimate], sizes: _Sizes) -> float:
    """Return for how many seconds a save stops the training."""
    if not sizes.large:
        return _whole(sizes) / WRITE_RATE
    rest = (_whole(sizes) - sizes.large) / WRITE_RATE
    # Tasks copy, or else write, what they hold at the same time.
    servers = [task for task in tasks if task.task.role is Role.PS]
    if sizes.in_background:
        return rest + sizes.copied / max(1, len(servers)) / COPY_RATE
    largest = max((task.saved_bytes for task in servers), default=sizes.large)
    return rest + largest / WRITE_RATE


def _whole(sizes: _Sizes) -> int:
    """Return the bytes of a checkpoint."""
    copied = sizes.copied_dense + sizes.copied_slots + sizes.state
    return copied + sizes.small_tables + sizes.large


def _list_described(host_variables: HostVariables) -> list[DescribedVariable]:
    """Return the described variables that are trained, their slots and indexes."""
    # What is frozen is state, which has a host copy.
    frozen = {id(variable) for variable in host_variables.state}
    return [variable for variable in host_variables.described() if id(variable) not in frozen]


def _is_described(variable: KerasVariable) -> bool:
    return isinstance(variable, DescribedVariable)


def _key_bytes(table: Table) -> int:
    """Return the bytes that are sent with a row: its index; of a growing table, id and count."""
    return 8 if table.index is None else 24


def _list_slots(host_variables: HostVariables) -> list[KerasVariable]:
    by_name = host_variables.slots.by_name.values()
    return [slot for by_position in by_name for slot in by_position.values()]
