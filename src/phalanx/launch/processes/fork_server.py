"""A process that imports large modules once, and forks the tasks of a job from there.

The supervisor starts this file as a program. It is a client of one connection, which it inherits as
a descriptor: a request has four bytes with its length, the descriptor of the task's output, and a
JSON object with the command and the environment. Answers are lines of JSON: `{"ready": true}`,
`{"pid": 1}`, `{"errno": 12}` and, when a task has ended, `{"pid": 1, "code": 0}`.

A fork is like a process that has started by itself:

- It is the leader of a process group, and has the task's arguments and its mark in /proc.
- The modules seem not to be imported until the program imports them. If the program changes its
  environment before that, which the modules might have read, the command is executed anew.
- A package of which only submodules are given, as `phalanx.train.runner`, is executed again when
  the program imports it, because it looks at the program. What was imported of it before the first
  other module reads no environment, and is not hidden.
- Its random numbers are its own.

It is killed if this process dies. Only the standard library is used before the modules.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

CHANGEABLE = frozenset(
    {"TF_CONFIG", "CUDA_VISIBLE_DEVICES", "PHALANX_TASK", "PHALANX_DATA_SERVICE"}
)
"""Variables that differ between tasks, and that no module reads when it is imported."""
TASK_VARIABLE = "PHALANX_TASK"
# The room for the arguments and the mark of a task, which take the place of these.
ARGUMENTS_ROOM = " " * 8192
TASK_ROOM = " " * 64
_SET_PARENT_DEATH_SIGNAL = 1


@dataclass(frozen=True)
class Request:
    """A task: the interpreter with its arguments, and the whole environment."""

    argv: list[str]
    environment: dict[str, str]


def serve(connection: socket.socket) -> Request | None:
    """Fork a process for each request; return the request in the fork, and None at the end.

    After the end of the connection, wait for the tasks: they are killed when this process ends.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tasks: set[int] = set()
    sources: list[Any] = [reading, connection]
    _answer(connection, ready=True)
    while tasks or connection in sources:
        readable, _, _ = select.select(sources, [], [])
        if reading in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(reading, 4096)
            for pid, code in _reap():
                tasks.discard(pid)
                _answer(connection, pid=pid, code=code)
        if connection in readable:
            received = _receive(connection)
            if received is None:
                sources.remove(connection)
                continue
            request, output = received
            try:
                pid = os.fork()
            except OSError as error:
                os.close(output)
                _answer(connection, errno=error.errno)
                continue
            if pid == 0:
                signal.set_wakeup_fd(-1)
                os.close(reading)
                os.close(writing)
                connection.close()
                _become_task(request, output)
                return request
            tasks.add(pid)
            os.close(output)
            # Both processes do this, so that neither has to wait for the other.
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            _answer(connection, pid=pid)
    return None


def _answer(connection: socket.socket, **fields: Any) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(fields).encode() + b"\n")


def _receive(connection: socket.socket) -> tuple[Request, int] | None:
    """Read a request and the descriptor of its output; None at the end of the connection."""
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 1)
        if len(head) < 4 or not descriptors:
            return None
        length, body = int.from_bytes(head), b""
        while len(body) < length:
            chunk = connection.recv(length - len(body))
            if not chunk:
                return None
            body += chunk
    except OSError:
        return None
    return Request(**json.loads(body)), descriptors[0]


def _reap() -> list[tuple[int, int]]:
    """Return the processes that have ended, with their exit codes."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((found[0], os.waitstatus_to_exitcode(found[1])))
    return ended


def _become_task(request: Request, output: int) -> None:
    parent = os.getppid()
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    _show_in_proc(request)
    for name in CHANGEABLE:
        if name in request.environment:
            os.environ[name] = request.environment[name]
        else:
            os.environ.pop(name, None)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _show_in_proc(request: Request) -> None:
    """Let /proc show the arguments and the mark of the task, where `ps` and others read them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first_argument, last_argument, first_variable, last_variable = map(int, fields[45:49])
    if not first_argument:
        return
    _write_memory(first_argument, last_argument, "\0".join(request.argv).encode())
    variables = ctypes.string_at(first_variable, last_variable - first_variable)
    mark = f"{TASK_VARIABLE}=".encode()
    start = (b"\0" + variables).find(b"\0" + mark)
    if start >= 0:
        start += first_variable
        text = mark + request.environment.get(TASK_VARIABLE, "").encode()
        _write_memory(start, start + len(mark) + len(TASK_ROOM), text)


def _write_memory(start: int, end: int, text: bytes) -> None:
    size = end - start - 1
    ctypes.memmove(start, text[:size].ljust(size, b"\0"), size)


class Hidden:
    """Modules that seem not to be imported until the program imports one of them.

    Until then, `on_change` is called when the program changes its environment.
    """

    def __init__(self, names: Sequence[str], on_change: Callable[[], None]) -> None:
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._put, self._unset = os.putenv, os.unsetenv
        self._on_change = on_change
        sys.meta_path.insert(0, self)
        os.putenv = self._put_and_tell  # type: ignore[assignment]
        os.unsetenv = self._unset_and_tell  # type: ignore[assignment]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        module = self._modules.get(name)
        return None if module is None else _make_spec(module, lambda _: self.show())

    def show(self) -> None:
        """Put the modules back where imports look first."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            os.putenv, os.unsetenv = self._put, self._unset
            sys.modules |= self._modules

    def _put_and_tell(self, name: bytes, text: bytes) -> None:
        self._put(name, text)
        if os.environb.get(name) != text:
            self._tell(name)

    def _unset_and_tell(self, name: bytes) -> None:
        self._unset(name)
        self._tell(name)

    def _tell(self, name: bytes) -> None:
        if os.fsdecode(name) not in CHANGEABLE and not name.startswith(b"PHALANX_"):
            self._on_change()


class ExecutedAgain:
    """Packages that are executed again when the program imports them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._packages = {name: sys.modules.pop(name) for name in names}
        if names:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = self._packages.pop(name, None)
        if package is None or package.__spec__ is None or package.__spec__.loader is None:
            return None
        return _make_spec(package, package.__spec__.loader.exec_module)


class _Loader(Loader):
    """Loads a module that is there already."""

    def __init__(self, module: ModuleType, load: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._load = load
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._load(module)


def _make_spec(module: ModuleType, load: Callable[[ModuleType], None]) -> ModuleSpec:
    """Return the spec of a module that is there already; `load` is called when it is imported."""
    spec, real = ModuleSpec(module.__name__, _Loader(module, load)), module.__spec__
    if real is not None:
        spec.origin = real.origin
        spec.submodule_search_locations = real.submodule_search_locations
    return spec


def import_modules(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Import modules; return those to hide, and the packages to execute again."""
    packages = {name.partition(".")[0] for name in names if "." in name}
    before: set[str] | None = None
    for name in names:
        if "." not in name and before is None:
            before = set(sys.modules)
        importlib.import_module(name)
    whole = [name for name in names if "." not in name]
    late = set(sys.modules) - (set(sys.modules) if before is None else before)
    parts = [name for name in late if name.partition(".")[0] in packages and "." in name]
    return [*whole, *parts], sorted(packages)


def run(request: Request, hidden: Sequence[str], again: Sequence[str]) -> None:
    """Run the program of a task as the interpreter would."""

    def execute() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(request.argv[0], request.argv, request.environment)

    sys.orig_argv = request.argv
    is_module = request.argv[1] == "-m"
    target, *arguments = request.argv[2 if is_module else 1 :]
    sys.argv = [target, *arguments]
    directory = str(Path.cwd()) if is_module else str(Path(target).resolve().parent)
    if "PYTHONSAFEPATH" not in request.environment:
        sys.path.insert(0, directory)
    Hidden(hidden, execute)
    ExecutedAgain(again)
    try:
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        # As from the interpreter, the traceback begins with the program.
        while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


_OWN_FILES = (__file__, runpy.__file__, "<frozen runpy>")


def main() -> None:
    descriptor, modules = int(sys.argv[1]), sys.argv[2].split(",")
    with socket.socket(fileno=descriptor) as connection:
        hidden, again = import_modules(modules)
        # The garbage collector would write to every object, and so copy the memory in each fork.
        gc.collect()
        gc.freeze()
        request = serve(connection)
    if request is not None:
        run(request, hidden, again)


if __name__ == "__main__":
    main()
