"""Ports that are held: real sockets of this and of other processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import pytest

from phalanx import JobError
from phalanx.launch.backends.local.ports import hold_ports

LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
"""
CLAIM_MANY = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
for _ in range(2000):
    sock = socket.socket()
    sock.bind(("", 0))
    held.append(sock)
print(*(sock.getsockname()[1] for sock in held))
"""


def test_task_can_listen_on_its_reserved_port_repeatedly() -> None:
    with hold_ports(1) as (port,):
        for _ in range(2):
            subprocess.run([sys.executable, "-c", LISTEN, str(port)], check=True)


def test_reserved_port_is_not_given_to_other_processes() -> None:
    with hold_ports(300) as ports:
        found = subprocess.run(
            [sys.executable, "-c", CLAIM_MANY], check=True, capture_output=True, text=True
        )
    taken = set(map(int, found.stdout.split()))
    assert len(taken) == 2000
    assert not taken & set(ports)
    assert len(set(ports)) == 300


def test_ports_are_consecutive_from_a_given_port() -> None:
    for _ in range(20):
        with hold_ports(1) as (port,):
            pass
        # The next two may be somebody else's.
        with contextlib.suppress(JobError), hold_ports(3, first=port) as ports:
            assert ports == (port, port + 1, port + 2)
            return
    pytest.fail("no three free ports in a row")


def test_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(JobError, match=f"port {port} cannot be used"), hold_ports(1, port):
            pass


def test_two_runs_cannot_reserve_the_same_ports_until_released() -> None:
    with hold_ports(2) as (port, _):
        pass
    with hold_ports(1, port), pytest.raises(JobError, match=str(port)), hold_ports(1, port):
        pass
    with hold_ports(1, port) as ports:
        assert ports == (port,)


def test_ports_above_65535_are_rejected() -> None:
    with pytest.raises(JobError, match="lower --base-port"), hold_ports(10, 65530):
        pass
