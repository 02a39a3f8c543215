"""TF_CONFIG: the only module that reads and writes it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from phalanx.cluster.lint import lint, read_cluster
from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.errors import ClusterError

VARIABLE = "TF_CONFIG"

Environment = Literal["local", "cloud"]


@dataclass(frozen=True)
class TFConfig:
    """This process's task and its cluster. The default is a single process.

    >>> config = TFConfig(Cluster.of(workers=["a:2222", "b:2222"]), Task(Role.WORKER, 1))
    >>> config.dumps()
    '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 1}}'
    >>> loads(config.dumps()) == config
    True

    Args:
        cluster: The address of every task.
        task: The task of this process.
        trial: The number of a hyperparameter tuning trial.
        model_dir: Where checkpoints and summaries go, if the launcher sets it.
        environment: `local`, or `cloud` on Cloud ML.
        master: Whether `dumps` calls the chief `master`, as TensorFlow 1 programs expect.
            TensorFlow 2 rejects that name, so that it must be asked for.
    """

    cluster: Cluster = field(default_factory=Cluster)
    task: Task = field(default_factory=lambda: Task(Role.CHIEF))
    trial: int = 0
    model_dir: str | None = None
    environment: Environment = "local"
    master: bool = field(default=False, compare=False)

    def is_chief(self) -> bool:
        """Whether this process acts as chief. A single process always does."""
        if not self.cluster.addresses:
            return self.task.role is not Role.EVALUATOR
        return self.task == self.cluster.chief()

    def dumps(self) -> str:
        """Return the text of TF_CONFIG."""
        config: dict[str, object] = {}
        if self.cluster.addresses:
            config["cluster"] = _dump_cluster(self.cluster, self.master)
        task = {"type": _dump_role(self.task.role, self.master), "index": self.task.index}
        config["task"] = {**task, "trial": self.trial} if self.trial else task
        if self.model_dir is not None:
            config["model_dir"] = self.model_dir
        if self.environment != "local":
            config["environment"] = self.environment
        return json.dumps(config)


def dump_each(
    cluster: Cluster,
    tasks: Iterable[Task],
    model_dir: str | None = None,
    environment: Environment = "local",
    *,
    master: bool = False,
) -> Iterator[tuple[Task, str]]:
    """Yield each task with the text of its TF_CONFIG; the shared part is rendered only once.

    >>> cluster = Cluster.of(workers=["a:2222", "b:2222"])
    >>> texts = dict(dump_each(cluster, cluster.tasks()))
    >>> all(TFConfig(cluster, task).dumps() == text for task, text in texts.items())
    True
    """
    shared = json.dumps(_dump_cluster(cluster, master))
    for task in tasks:
        config = TFConfig(task=task, model_dir=model_dir, environment=environment, master=master)
        alone = config.dumps()
        yield task, f'{{"cluster": {shared}, {alone[1:]}'


def loads(text: str, source: str = VARIABLE) -> TFConfig:
    """Parse TF_CONFIG, or raise a ClusterError that calls it `source` and lists every problem."""
    problems = [problem for problem in lint(text) if not problem.tolerated]
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise ClusterError(f"{source} cannot be used:{listed}")
    config = json.loads(text)
    entries = read_cluster(config.get("cluster", {}))
    task = config.get("task", {"type": "chief", "index": 0})
    return TFConfig(
        cluster=Cluster({task: str(address) for _, task, address in entries}),
        task=Task(Role.parse(task["type"]), int(task["index"])),
        trial=int(task.get("trial", 0)),
        model_dir=config.get("model_dir"),
        environment=config.get("environment", "local"),
    )


def names_master(environ: Mapping[str, str]) -> bool:
    """Whether the variable TF_CONFIG, which must be valid, calls the chief `master`."""
    config = json.loads(environ.get(VARIABLE, "").strip() or "{}")
    return "master" in (*config.get("cluster", {}), config.get("task", {}).get("type"))


def read_variable(environ: Mapping[str, str], argv: Sequence[str] = ()) -> TFConfig | None:
    """Read the variable TF_CONFIG; it may be unset or empty."""
    text = environ.get(VARIABLE, "").strip()
    return loads(text) if text else None


def _dump_role(role: Role, master: bool) -> str:
    return "master" if master and role is Role.CHIEF else role.value


def _dump_cluster(cluster: Cluster, master: bool) -> dict[str, list[str] | dict[str, str]]:
    """Write a role as a list if its indices have no gap, otherwise in TensorFlow's sparse form."""
    dumped: dict[str, list[str] | dict[str, str]] = {}
    for role in Role:
        hosts = {task.index: cluster.addresses[task] for task in cluster.tasks(role)}
        if hosts:
            has_gap = list(hosts) != list(range(len(hosts)))
            sparse = {str(index): address for index, address in hosts.items()}
            dumped[_dump_role(role, master)] = sparse if has_gap else list(hosts.values())
    return dumped
