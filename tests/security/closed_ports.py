"""A job of programs/listen.py, whatever started it, and the proof that its ports are closed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.servers import namespaces
from tests.servers.processes import wait_for

from phalanx.cluster.spec import split_address

PROGRAM = Path(__file__).parent / "programs/listen.py"
VARIABLE = "TEST_RUN"


def wait_for_tasks(folder: Path, count: int) -> dict[str, str]:
    """Return the address of every task, once all listen."""
    wait_for(lambda: len(_read(folder)) == count and all(_read(folder).values()))
    return _read(folder)


def _read(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != "stop"}


def check_closed(
    stranger: namespaces.Namespace, value: str, addresses: dict[str, str], tasks: int
) -> None:
    """Check with `ss` and with connections that only this host reaches a job on this host.

    `value` is that of VARIABLE in the environment of all tasks of the job.
    """
    wait_for(lambda: len(_list_addresses(value)) >= tasks)
    found = _list_addresses(value)
    assert set(addresses.values()) <= found, json.dumps([*found], indent=1)
    hosts = {split_address(address)[0] for address in found}
    assert hosts == {split_address(address)[0] for address in addresses.values()}
    for host, port in map(split_address, found):
        if host == "127.0.0.1":
            result = stranger.connect(stranger.host_address, port)
            assert result == "refused", f"port {port} is {result}"
        else:
            # The guard closes the connection.
            result = stranger.connect(host, port)
            assert result == "closed", f"{host}:{port} is {result}"


def _list_addresses(value: str) -> set[str]:
    listeners = namespaces.list_listeners(VARIABLE, value)
    found = {address for each in listeners.values() for address in each}
    return {address.replace("[::ffff:", "").replace("]:", ":") for address in found}
