"""Hosts of tasks, with a router that cuts them off; needs root."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.launch.chaos.network import Network, find_obstacle, open_network

pytestmark = pytest.mark.skipif(bool(find_obstacle()), reason=str(find_obstacle()))

CHIEF, FIRST, SECOND = Task(Role.CHIEF), Task(Role.WORKER, 0), Task(Role.WORKER, 1)
# Says whether a port without a listener answers: "refused" is an answer.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 0.5)
except ConnectionRefusedError:
    print("refused")
except TimeoutError:
    print("nothing")
"""


def connect(network: Network, source: Task, target: Task) -> str:
    command = [*network.command_of(source), sys.executable, "-c", CONNECT]
    done = subprocess.run(
        [*command, network.address_of(target)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_host_that_is_cut_off_gets_no_answer_until_it_heals() -> None:
    with open_network([FIRST, SECOND]) as network:
        assert connect(network, FIRST, CHIEF) == connect(network, SECOND, FIRST) == "refused"
        network.cut(FIRST)
        for source, target in ((FIRST, CHIEF), (CHIEF, FIRST), (SECOND, FIRST)):
            assert connect(network, source, target) == "nothing"
        assert connect(network, SECOND, CHIEF) == "refused"
        network.heal(FIRST)
        assert connect(network, CHIEF, FIRST) == "refused"
        router = network.router
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, timeout=30, check=True
    )
    assert router not in listed.stdout


def test_two_groups_are_split_and_reach_the_bridge() -> None:
    with open_network([FIRST, SECOND]) as network:
        network.split([FIRST], [SECOND])
        assert connect(network, FIRST, SECOND) == connect(network, SECOND, FIRST) == "nothing"
        assert connect(network, FIRST, CHIEF) == connect(network, CHIEF, SECOND) == "refused"
        network.split([FIRST], [SECOND], heal=True)
        assert connect(network, FIRST, SECOND) == "refused"


def test_tasks_without_a_host_listen_at_an_address_that_the_others_reach() -> None:
    with open_network([FIRST]) as network, socket.create_server((network.host, 0)) as server:
        assert network.address_of(CHIEF) == network.host
        assert network.command_of(CHIEF) == ()
        code = f"import socket; socket.create_connection({server.getsockname()!r}, 10)"
        command = [*network.command_of(FIRST), sys.executable, "-c", code]
        subprocess.run(command, check=True, timeout=60)
