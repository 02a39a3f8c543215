"""The rules of the guard in real programs, and connections from other network namespaces."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers import namespaces

from phalanx.guard.library import find_library, guard_variables

# A server that prints its address, then a line for each connection that it accepts.
SERVER = """
import select, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
is_dual = ":" in sys.argv[1] and "v6only" not in sys.argv
at = sys.argv[1], int(sys.argv[2])
server = socket.create_server(at, family=family, dualstack_ipv6=is_dual)
print(*server.getsockname()[:2], flush=True)
server.setblocking("nonblocking" not in sys.argv)
kept = []
while True:
    select.select([server], [], [])
    try:
        connection, peer = server.accept()
    except BlockingIOError:
        print("EAGAIN", flush=True)
        continue
    kept.append(connection)
    print("accepted", peer[0], flush=True)
"""


class Server:
    """A guarded process that listens, and its output."""

    def __init__(self, bind: str, peers: str, *arguments: str, **variables: str) -> None:
        library = find_library()
        assert library is not None
        environ = {**os.environ, **guard_variables(library, bind, peers.split(","), {})}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *arguments],
            env={**environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address, port = self.read().split()
        self.port = int(port)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.process.stderr and self.process.stderr.read()
        return line

    def read_error(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def host() -> Iterator[namespaces.Namespace]:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    with namespaces.namespace() as made:
        yield made


@pytest.fixture(scope="module")
def stranger(host: namespaces.Namespace) -> Iterator[namespaces.Namespace]:
    with namespaces.namespace() as made:
        yield made


def test_library_was_built() -> None:
    assert find_library() is not None, "a C compiler is needed; then: pip install --editable ."


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::ffff:127.0.0.1"),
        ("::ffff:0.0.0.0", "::ffff:127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
    ],
)
def test_wildcard_becomes_the_own_address(given: str, found: str, port: int) -> None:
    with Server("127.0.0.1", "", given, str(port)) as server:
        assert server.address == found
        with socket.create_connection((found.removeprefix("::ffff:"), port), 5):
            assert server.read() == "accepted " + found.replace("127.0.0.2", "127.0.0.1")


def test_ipv6_only_socket_of_an_ipv4_job_becomes_loopback(port: int) -> None:
    with Server("127.0.0.1", "", "::", str(port), "v6only") as server:
        assert server.address == "::1"


def test_sockets_of_an_ipv6_job(port: int) -> None:
    with Server("::1", "", "::", str(port)) as server:
        assert server.address == "::1"
    with Server("::1", "", "0.0.0.0", str(port)) as server:
        assert server.address == "127.0.0.1"


def test_port_0_and_open_ports_keep_the_wildcard(port: int) -> None:
    with Server("127.0.0.1", "", "0.0.0.0", "0") as server:
        assert server.address == "0.0.0.0"
    with Server("127.0.0.1", "", "0.0.0.0", str(port), PHALANX_GUARD_OPEN=f"1,{port}") as server:
        assert server.address == "0.0.0.0"


def test_loopback_job_cannot_be_reached(host: namespaces.Namespace, port: int) -> None:
    with Server("127.0.0.1", "127.0.0.1", "0.0.0.0", str(port)):
        assert host.connect(host.host_address, port) == "refused"


@pytest.mark.parametrize("mode", ["blocking", "nonblocking"])
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_only_hosts_of_the_job_connect(
    host: namespaces.Namespace,
    stranger: namespaces.Namespace,
    port: int,
    address: str,
    mode: str,
) -> None:
    # With * the task listens on all interfaces, as a stranger needs in order to reach it at all.
    with Server("*", f"no.such.host.invalid,{host.address}", address, str(port), mode) as server:
        assert stranger.connect(stranger.host_address, port) == "closed"
        assert f"refused a connection from {stranger.address} to port {port}" in server.read_error()
        if mode == "nonblocking":
            assert server.read() == "EAGAIN"
        assert host.connect(host.host_address, port, seconds=0.1) == "open"
        assert server.read().endswith(host.address)
        with socket.create_connection(("127.0.0.1", port), 5):
            assert server.read().endswith("127.0.0.1")


def test_names_are_resolved_and_the_user_may_allow_more(
    host: namespaces.Namespace, stranger: namespaces.Namespace, port: int, tmp_path: Path
) -> None:
    with Server(
        host.host_address, "localhost", "::", str(port), PHALANX_GUARD_ALLOW=stranger.address
    ) as server:
        assert server.address == f"::ffff:{host.host_address}"
        assert host.connect(host.host_address, port) == "closed"
        with socket.create_connection((host.host_address, port), 5):
            assert server.read().endswith(host.host_address)


def test_open_port_accepts_everybody(stranger: namespaces.Namespace, port: int) -> None:
    with Server("127.0.0.1", "", "0.0.0.0", str(port), PHALANX_GUARD_OPEN=str(port)) as server:
        assert stranger.connect(stranger.host_address, port, seconds=0.1) == "open"
        assert server.read() == f"accepted {stranger.address}"


@pytest.mark.parametrize(
    ("name", "text"), [("PHALANX_GUARD_BIND", "here"), ("PHALANX_GUARD_OPEN", "80,x")]
)
def test_wrong_variables_end_the_program(name: str, text: str) -> None:
    library = find_library()
    assert library is not None
    environ = {**guard_variables(library, "127.0.0.1", [], {}), name: text}
    done = subprocess.run(
        ["true"], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{name} is '{text}'" in done.stderr


OTHER_SOCKETS = """
import socket, sys
server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
client.connect(sys.argv[1])
server.accept()
first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
first.bind(("", 0))
first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
second.bind(("", first.getsockname()[1]))
print(second.getsockname()[0])
"""


def test_unix_sockets_and_udp_are_left_alone(tmp_path: Path) -> None:
    library = find_library()
    assert library is not None
    done = subprocess.run(
        [sys.executable, "-c", OTHER_SOCKETS, str(tmp_path / "socket")],
        env={**os.environ, **guard_variables(library, "127.0.0.1", [], {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "0.0.0.0\n", done.stderr


# A name server that knows one name, and gives no answer while a file exists.
NAME_SERVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef int (*resolve)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    resolve next = (resolve)dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, "worker") != 0) return next(name, service, hints, found);
    if (access(getenv("TEST_IS_DOWN"), F_OK) == 0) return EAI_AGAIN;
    return next(getenv("TEST_WORKER"), service, hints, found);
}
"""


def test_peers_can_connect_while_the_name_server_is_down(
    stranger: namespaces.Namespace, tmp_path: Path
) -> None:
    if not shutil.which("gcc"):
        pytest.skip("gcc not installed")
    (tmp_path / "names.c").write_text(NAME_SERVER)
    files = ["-o", str(tmp_path / "names.so"), str(tmp_path / "names.c")]
    subprocess.run(["gcc", "-shared", "-fPIC", *files, "-ldl"], check=True)
    with namespaces.namespace() as worker:
        variables = {
            "LD_PRELOAD": f"{find_library()}:{tmp_path}/names.so",
            "TEST_IS_DOWN": str(tmp_path / "down"),
            "TEST_WORKER": worker.address,
        }
        with Server("*", "worker", "0.0.0.0", "0", **variables) as server:
            assert worker.connect(worker.host_address, server.port) == "open"
            (tmp_path / "down").touch()
            time.sleep(1.5)  # names are resolved once a second
            assert stranger.connect(stranger.host_address, server.port) == "closed"
            assert worker.connect(worker.host_address, server.port) == "open"
            (tmp_path / "down").unlink()
            time.sleep(1.5)
            assert stranger.connect(stranger.host_address, server.port) == "closed"
