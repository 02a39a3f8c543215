"""Tasks that are forked from a server behave like processes that have started by themselves."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.launch.processes.forks import ForkedProcess, ForkServer, ForkServers
from phalanx.launch.processes.guardian import find_run_processes
from phalanx.launch.processes.plan import TaskPlan

# A module that, like TensorFlow, takes long to import and reads the environment when it is.
SLOW = """
import os
PROCESS = os.getpid()
COLOR = os.environ.get("COLOR")
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tasks are forked on Linux only")


@pytest.fixture
def variables(tmp_path: Path, environ: dict[str, str]) -> dict[str, str]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/slow.py").write_text(SLOW)
    return {
        **environ,
        "PYTHONPATH": str(tmp_path / "modules"),
        "COLOR": "blue",
        "PHALANX_RUN_ID": f"run-of-{tmp_path.name}-{os.getpid()}",
    }


@pytest.fixture
def server(variables: dict[str, str]) -> Iterator[ForkServer]:
    server = ForkServer.start(sys.executable, ["slow"], variables)
    while server.is_starting():
        time.sleep(0.01)
    yield server
    server.close()
    assert server.process.poll() is not None


Run = Callable[..., tuple[int, str]]


def fork(server: ForkServer, command: list[str], variables: dict[str, str]) -> ForkedProcess:
    reading, writing = os.pipe()
    process = server.fork(command, variables, writing)
    os.close(writing)
    process.stdout = os.fdopen(reading, "rb", 0)
    return process


@pytest.fixture
def start(
    server: ForkServer, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., ForkedProcess]:
    """Fork a process that runs a program with arguments."""

    def start(program: str, *arguments: str, **more: str) -> ForkedProcess:
        path = tmp_path / "program.py"
        path.write_text(dedent(program))
        command = [sys.executable, str(path), *arguments]
        return fork(server, command, {**variables, **more})

    return start


@pytest.fixture
def run(start: Callable[..., ForkedProcess]) -> Run:
    """Fork a process and return its exit code and output."""

    def run(program: str, *arguments: str, **more: str) -> tuple[int, str]:
        process = start(program, *arguments, **more)
        assert process.stdout is not None
        with process.stdout as stdout:
            output = stdout.read().decode()
        return process.wait(60), output

    return run


def test_imports_are_shared_with_the_server(server: ForkServer, run: Run) -> None:
    assert run("import slow; print(slow.PROCESS)") == (0, f"{server.process.pid}\n")


def test_arguments_path_and_file_are_those_of_the_program(run: Run, tmp_path: Path) -> None:
    program = """
        import json, os, sys
        print(json.dumps([sys.argv, sys.orig_argv[1:], __file__, sys.path[0], __name__]))
        print(sys.stdin.read() == "", os.getpgid(0) == os.getpid())
    """
    code, output = run(program, "--rate", "0.1")
    first, second = output.splitlines()
    path = str(tmp_path / "program.py")
    argv = [path, "--rate", "0.1"]
    assert (code, json.loads(first)) == (0, [argv, argv, path, str(tmp_path), "__main__"])
    assert second == "True True"


def test_modules_run_as_with_python_m(
    server: ForkServer, variables: dict[str, str], tmp_path: Path
) -> None:
    package = tmp_path / "modules/package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "other.py").write_text("NAME = __name__")
    (package / "main.py").write_text(
        "from .other import NAME\nimport sys\nprint(NAME, __spec__.name, sys.argv)"
    )
    process = fork(server, [sys.executable, "-m", "package.main", "x"], variables)
    assert process.stdout is not None
    output = process.stdout.read().decode()
    expected = f"package.other package.main {[str(package / 'main.py'), 'x']}\n"
    assert (process.wait(60), output) == (0, expected)


def test_environment_is_that_of_the_task(run: Run) -> None:
    program = "import os; print(os.environ['TF_CONFIG'], os.environ.get('CUDA_VISIBLE_DEVICES'))"
    assert run(program, TF_CONFIG="{}") == (0, "{} None\n")


def test_proc_shows_the_arguments_and_the_mark_of_the_task(
    start: Callable[..., ForkedProcess], variables: dict[str, str], tmp_path: Path
) -> None:
    process = start("import time; print('up', flush=True); time.sleep(60)", PHALANX_TASK="worker-1")
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert command == [sys.executable.encode(), str(tmp_path / "program.py").encode()]
    assert find_run_processes(variables["PHALANX_RUN_ID"], "worker-1") == [process.pid]
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    "change", ["os.environ['COLOR'] = 'red'", "os.environ.update(COLOR='red')"]
)
def test_program_that_sets_variables_before_the_import_is_executed_anew(
    run: Run, server: ForkServer, change: str
) -> None:
    program = f"""
        import os
        {change}
        import slow
        print(slow.COLOR, slow.PROCESS == os.getpid())
    """
    assert run(program) == (0, "red True\n")


@pytest.mark.parametrize(
    "change",
    [
        "os.environ.setdefault('COLOR', 'red')",
        "os.environ['COLOR'] = 'blue'",
        "os.environ['TF_CONFIG'] = '{}'",
        "import slow; os.environ['COLOR'] = 'red'",
    ],
)
def test_program_that_changes_nothing_that_matters_goes_on(
    run: Run, server: ForkServer, change: str
) -> None:
    program = f"import os; {change}; import slow; print(slow.PROCESS)"
    assert run(program) == (0, f"{server.process.pid}\n")


def test_modules_seem_not_to_be_imported(run: Run, tmp_path: Path) -> None:
    program = """
        import sys
        from importlib.util import find_spec
        print("slow" in sys.modules, find_spec("slow").origin == "{}/modules/slow.py")
        import slow
        print(slow.__spec__.origin == slow.__file__, sys.modules["slow"] is slow)
    """
    assert run(program.format(tmp_path)) == (0, "False True\nTrue True\n")


@pytest.fixture
def run_with_package(variables: dict[str, str], tmp_path: Path) -> Iterator[Run]:
    """Run a program in a fork of a server that has imported parts of a package, too."""
    package = tmp_path / "modules/package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import sys\nPROGRAM = getattr(sys.modules['__main__'], '__file__', '')"
    )
    (package / "light.py").write_text("import os\nPROCESS = os.getpid()")
    (package / "heavy.py").write_text("from slow import COLOR, PROCESS\nfrom package import light")
    server = ForkServer.start(sys.executable, ["package.light", "slow", "package.heavy"], variables)
    while server.is_starting():
        time.sleep(0.01)

    def run(program: str) -> tuple[int, str]:
        path = tmp_path / "program.py"
        path.write_text(dedent(program))
        process = fork(server, [sys.executable, str(path)], variables)
        assert process.stdout is not None
        with process.stdout as stdout:
            output = stdout.read().decode().replace(str(server.process.pid), "server")
        return process.wait(60), output.replace(str(path), "program.py")

    yield run
    server.close()


@pytest.mark.parametrize(
    "imports",
    ["import package.heavy", "import slow, package.heavy", "import package.light, package.heavy"],
)
def test_package_looks_at_the_program_that_imports_it(run_with_package: Run, imports: str) -> None:
    program = f"""
        {imports}
        import sys
        print(package.PROGRAM, package.heavy.PROCESS, package.light.PROCESS)
        print(sys.modules["package"] is package, "slow" in sys.modules)
    """
    assert run_with_package(program) == (0, "program.py server server\nTrue True\n")


@pytest.mark.parametrize("first", ["", "import package.light", "from package import light"])
def test_environment_may_change_before_a_heavy_part_of_a_package_is_imported(
    run_with_package: Run, first: str
) -> None:
    program = f"""
        import os
        {first}
        os.environ["COLOR"] = "red"
        from package import heavy
        print(heavy.COLOR, heavy.PROCESS == os.getpid())
    """
    assert run_with_package(program) == (0, "red True\n")


def test_exit_codes_and_signals_are_reported(run: Run) -> None:
    assert run("raise SystemExit(3)") == (3, "")
    assert run("import sys; sys.exit('no data')") == (1, "no data\n")
    assert run("import os; os.kill(os.getpid(), 15)") == (-signal.SIGTERM, "")
    assert run("import atexit; atexit.register(print, 'end')") == (0, "end\n")


def test_streams_are_pipes(run: Run) -> None:
    program = """
        import sys
        print(sys.stdout.seekable(), sys.stderr.seekable(), sys.stdout.isatty())
        sys.stdout.reconfigure(line_buffering=True)
        sys.stderr.reconfigure(errors="replace")
    """
    assert run(program) == (0, "False False False\n")


def test_traceback_begins_with_the_program(run: Run, tmp_path: Path) -> None:
    code, output = run("def train():\n    raise ValueError('no data')\n\ntrain()")
    lines = output.splitlines()
    assert (code, lines[0], lines[-1]) == (
        1,
        "Traceback (most recent call last):",
        "ValueError: no data",
    )
    assert lines[1] == f'  File "{tmp_path}/program.py", line 4, in <module>'


def test_classes_of_the_program_can_be_sent_to_other_processes(run: Run) -> None:
    program = """
        import multiprocessing

        def double(number):
            return 2 * number

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [21]))
    """
    assert run(program) == (0, "[42]\n")


def test_random_numbers_differ(variables: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import random, numpy; print(random.random(), numpy.random.rand(), numpy.random.rand())"
    )
    server = ForkServer.start(sys.executable, ["numpy"], variables)
    while server.is_starting():
        time.sleep(0.01)
    processes = [fork(server, [sys.executable, str(program)], variables) for _ in range(2)]
    outputs = [process.stdout.read().split() for process in processes if process.stdout]
    server.close()
    assert len({number for output in outputs for number in output}) == 6


def test_processes_are_killed_with_the_server(
    server: ForkServer, start: Callable[..., ForkedProcess], variables: dict[str, str]
) -> None:
    process = start("import time; print('up', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    server.process.kill()
    assert process.stdout.read() == b""
    assert process.wait(60) == -signal.SIGKILL
    assert not server.can_fork(sys.executable, variables)


def test_server_without_its_modules_cannot_fork(variables: dict[str, str]) -> None:
    server = ForkServer.start(sys.executable, ["no_such_module"], variables)
    while server.is_starting():
        time.sleep(0.01)
    assert not server.can_fork(sys.executable, variables)
    server.close()


def make_task(name: str, variables: dict[str, str], **more: str) -> TaskPlan:
    task = Task(Role.WORKER, int(name[-1]))
    environment = {**variables, "PHALANX_TASK": name, **more}
    return TaskPlan(task, (sys.executable, "x.py"), environment, Path("log"), preload=("slow",))


def test_tasks_share_a_server_unless_an_import_could_tell_them_apart(
    variables: dict[str, str],
) -> None:
    tasks = [make_task(f"worker-{index}", variables, TF_CONFIG=str(index)) for index in range(2)]
    other = make_task("worker-2", variables, COLOR="red")
    for planned, restarts, count in (
        (tasks, False, 1),
        ([*tasks, other], False, 1),
        ([*tasks, other], True, 2),
        (tasks[:1], False, 0),
        (tasks[:1], True, 1),
    ):
        servers = ForkServers()
        servers.start(planned, {}, restarts=restarts)
        assert len(list(servers)) == count
        servers.close()
