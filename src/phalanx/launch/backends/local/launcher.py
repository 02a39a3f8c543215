"""The local backend: a process on this machine for each task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.cluster.job_environment import grace_variables, restart_variables
from phalanx.cluster.job_secret import with_secret
from phalanx.cluster.progress import PROGRESS_VARIABLE
from phalanx.cluster.spec import Role, Task
from phalanx.guard.library import BIND
from phalanx.guard.library import PEERS as PEERS_VARIABLE
from phalanx.guard.plan import LOOPBACK
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.job import Job
from phalanx.launch.processes.generations import ElasticSize
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.handle import SupervisedHandle, start
from phalanx.launch.processes.plan import ElasticPlan, ProcessPlan, TaskPlan
from phalanx.launch.processes.rotating_log import DEFAULT_LIMIT
from phalanx.launch.processes.supervisor import Observer
from phalanx.launch.task_commands import DEFAULTS, make_task_commands, thread_variables
from phalanx.launch.termination import GracePeriods


@dataclass(frozen=True)
class TaskHost:
    """Where a task listens, and the command that starts other commands there."""

    address: str = LOOPBACK
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalLauncher:
    """Starts the tasks of a job as processes on this machine.

    `ports` has a port for each task but the evaluators, and for each spare slot of an elastic job.
    With `share`, the tasks divide the
    processors and GPUs of the machine among themselves. `guard` has the variables that close their
    ports to other hosts. The chief writes its progress to `progress_file`. `hosts` has the tasks
    that run in network namespaces, and those that these must reach. The tasks of the program may be
    forked from a process that has imported the modules in `preload`, and data tasks from one that
    has imported those in `data_preload`.

    >>> from phalanx.launch.job import Job, Program, ProgramKind
    >>> job = Job("hello", Program(ProgramKind.COMMAND, "echo", ("{role}",)))
    >>> machine = Machine(processors=2, gpus=(), environ={}, python="python3")
    >>> launcher = LocalLauncher(machine, ports=(2222,), log_dir=Path("logs"), run_id="r1")
    >>> launcher.plan(job).tasks[0].argv
    ('echo', 'chief')
    """

    machine: Machine
    ports: Sequence[int]
    log_dir: Path
    run_id: str
    share: bool = True
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    silence_limit: float | None = None
    guard: Mapping[str, str] = field(default_factory=dict)
    log_limit: int = DEFAULT_LIMIT
    progress_file: Path | None = None
    stop_limit: float | None = 60.0
    hang_limit: float | None = None
    hosts: Mapping[Task, TaskHost] = field(default_factory=dict)
    rejoin_seconds: float = 300.0
    preload: tuple[str, ...] = ()
    data_preload: tuple[str, ...] = ()

    def plan(self, job: Job) -> ProcessPlan:
        job.validate(can_scale=True)
        slots = job.largest().listening_tasks()
        addresses = {
            slot: f"{self._host(slot).address}:{port}"
            for slot, port in zip(slots, self.ports, strict=True)
        }
        return ProcessPlan(
            self._plan_tasks(job, addresses, job.trainers()),
            self.run_id,
            job.restarts,
            self.grace_periods,
            job.time_limit,
            silence_limit=self.silence_limit,
            log_limit=self.log_limit,
            stop_limit=self.stop_limit,
            hang_limit=self.hang_limit,
            progress_file=None if self.progress_file is None else str(self.progress_file),
            elastic=self._plan_elastic(job, addresses) if job.is_elastic else None,
        )

    def _plan_elastic(self, job: Job, addresses: Mapping[Task, str]) -> ElasticPlan:
        def make_tasks(members: Sequence[Task]) -> tuple[TaskPlan, ...]:
            return self._plan_tasks(job, addresses, members)

        size = ElasticSize.of_job(job, self.rejoin_seconds)
        return ElasticPlan(size, make_tasks, self.log_dir)

    def _plan_tasks(
        self, job: Job, addresses: Mapping[Task, str], members: Sequence[Task]
    ) -> tuple[TaskPlan, ...]:
        """Plan the processes of a job whose trainers run in these slots, the chief's first.

        `addresses` has those of all slots. A slot has its own log and GPUs, whatever the rank of
        its trainer in TF_CONFIG.
        """
        machine = self.machine
        gpus = _share_gpus(job.largest().all_tasks(), machine.gpus) if self.share else {}
        job, slots = job.with_members(members)
        defaults = dict(DEFAULTS)
        if self.share:
            defaults |= thread_variables(_share_processors(job.all_tasks(), machine.processors))
        if job.program.tf1:
            # Set by the task itself, too; it is here so that tasks can be forked.
            defaults["TF_USE_LEGACY_KERAS"] = "1"
        common = {name: text for name, text in defaults.items() if name not in machine.environ}
        common |= job.environment
        if self.progress_file is not None:
            # Absolute, since a program may change its directory.
            common[PROGRESS_VARIABLE] = str(self.progress_file.absolute())
        if job.threads:
            common |= thread_variables(job.threads)
        ranked = {task: addresses[slots[task]] for task in job.listening_tasks()}
        plans = []
        data_tasks = set(job.data_tasks())
        for command in make_task_commands(job, ranked, machine.python, guarded=False):
            slot = slots[command.task]
            preload = self.data_preload if command.task in data_tasks else self.preload
            variables = {
                **command.variables,
                **({"CUDA_VISIBLE_DEVICES": ",".join(gpus[slot])} if gpus else {}),
                **common,
                **self._guard_of(slot),
                **restart_variables(job.restarts),
                **grace_variables(self.grace_periods.grace),
                RUN_ID_VARIABLE: self.run_id,
                TASK_VARIABLE: str(slot),
            }
            plans.append(
                TaskPlan(
                    slot,
                    (*self._host(slot).command, *command.command),
                    variables,
                    self.log_dir / f"{slot}.log",
                    secrets=job.secrets,
                    rank=command.task,
                    preload=() if self._host(slot).command else preload,
                )
            )
        return tuple(plans)

    def _host(self, task: Task) -> TaskHost:
        return self.hosts.get(task, TaskHost())

    def _guard_of(self, task: Task) -> Mapping[str, str]:
        """Return the variables that close the ports of a task to all but the hosts of its job."""
        if not self.guard or not self.hosts:
            return self.guard
        peers = dict.fromkeys(host.address for host in self.hosts.values())
        return {**self.guard, BIND: self._host(task).address, PEERS_VARIABLE: ",".join(peers)}

    def submit(self, plan: ProcessPlan, observer: Observer | None = None) -> SupervisedHandle:
        return start(plan, with_secret(self.machine.environ), observer)


def _list_trainers(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.role in (Role.CHIEF, Role.WORKER)]


def _share_processors(tasks: Sequence[Task], processors: int) -> int:
    """Divide the processors among trainers and data workers; the other tasks are mostly idle."""
    busy = [task for task in tasks if task.role is Role.DATA_WORKER] + _list_trainers(tasks)
    return max(1, processors // len(busy))


def _share_gpus(tasks: Sequence[Task], gpus: Sequence[str]) -> dict[Task, list[str]]:
    """Assign the GPUs round-robin to trainers and evaluators; several share one if need be."""
    if not gpus:
        return {}
    computing = _list_trainers(tasks) + [task for task in tasks if task.role is Role.EVALUATOR]
    shares: dict[Task, list[str]] = {task: [] for task in tasks}
    for turn in range(max(len(gpus), len(computing))):
        shares[computing[turn % len(computing)]].append(gpus[turn % len(gpus)])
    return shares
