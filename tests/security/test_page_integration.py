"""The checks of SECURITY.md, as they are written there, on a job of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import namespaces
from tests.servers.processes import wait_for

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text()
# Listens as TensorFlow does: on all interfaces, and the server speaks first.
PROGRAM = """
import json, os, pathlib, socket, time
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
port = int(config["cluster"][role][index].rpartition(":")[2])
server = socket.create_server(("", port))
server.settimeout(0.1)
new = pathlib.Path(f"{role}.new")
new.write_text(f"{os.getpid()} {port}")
new.rename(f"{role}-{index}")
deadline, clients = time.monotonic() + 300, []
while not pathlib.Path("stop").exists() and time.monotonic() < deadline:
    try:
        clients.append(server.accept()[0])
        clients[-1].sendall(b"settings")
    except TimeoutError:
        pass
"""


def find(part: str) -> str:
    """Return the command of the page that has this part, without its comment."""
    [line] = [each for each in PAGE.splitlines() if part in each and "  #" in each]
    return line.partition("  #")[0].strip()


@contextmanager
def running(folder: Path, command: str, tasks: int, **variables: str) -> Iterator[dict[str, str]]:
    """Run a command in a folder; yield the port of each process that listens, by its number."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, **variables}
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    with subprocess.Popen(["bash", "-c", command], cwd=folder, env=environ) as job:
        try:
            wait_for(lambda: len(list(folder.glob("*-[0-9]"))) == tasks or job.poll() is not None)
            assert job.poll() is None
            texts = [each.read_text() for each in folder.glob("*-[0-9]")]
            yield dict(text.partition(" ")[::2] for text in texts)
        finally:
            (folder / "stop").touch()
        assert job.wait(120) == 0


def run(command: str, *enter: str) -> str:
    done = subprocess.run(
        [*enter, "bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout


def test_checks_show_a_guarded_job_and_an_open_one(
    stranger: namespaces.Namespace, tmp_path: Path
) -> None:
    connect = find("/dev/tcp/").replace("HOST", stranger.host_address)
    with running(tmp_path / "guarded", find("PHALANX_GUARD=required"), tasks=3) as tasks:
        listeners = run(find("ss -ltnp"))
        for pid, port in tasks.items():
            [line] = [each for each in listeners.splitlines() if f"pid={pid}," in each]
            assert f"127.0.0.1:{port} " in line
            assert int(run(find("guard/_preload").replace("PID", pid))) > 0
            assert run(connect.replace("PORT", port), *stranger.command()).split() == ["1"]
    port = next(iter(tasks.values()))
    cluster = {"worker": [f"{stranger.host_address}:{port}"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    by_hand = running(tmp_path / "open", "exec python train.py", tasks=1, TF_CONFIG=config)
    with by_hand as tasks:
        [(pid, port)] = tasks.items()
        assert run(find("guard/_preload").replace("PID", pid)) == "0\n"
        assert "124" in run(connect.replace("PORT", port), *stranger.command())


def test_plan_for_kubernetes_has_limits_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    plan = run(f"cd '{tmp_path}' && PATH='{path}' {find('launch kubernetes')}")
    assert "securityContext:" in plan
    assert "kind: NetworkPolicy" in plan
    assert not re.search("[0-9a-f]{64}", plan)
