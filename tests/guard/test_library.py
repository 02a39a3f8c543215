from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.errors import ConfigurationError
from phalanx.guard.library import (
    find_library,
    find_obstacle,
    find_path_obstacle,
    guard_variables,
    is_active,
    is_off,
)
from phalanx.guard.own_address import find_own_address


def test_library_works_here_and_is_not_loaded_into_this_process() -> None:
    assert find_obstacle("python3") is None
    assert not is_active()


@pytest.mark.parametrize("directory", ["my env", "a:b", "a\tb"])
def test_path_that_cannot_be_preloaded_is_an_obstacle(directory: str) -> None:
    assert "without spaces and colons" in str(find_path_obstacle(Path("/", directory, "lib.so")))
    assert find_path_obstacle(Path("/env/lib.so")) is None


def test_misspelt_setting_is_an_error() -> None:
    assert is_off({"PHALANX_GUARD": "off"})
    assert not is_off({"PHALANX_GUARD": "required"})
    assert not is_off({})
    with pytest.raises(ConfigurationError, match="PHALANX_GUARD is 'requried': set it to off or"):
        is_off({"PHALANX_GUARD": "requried"})


def test_library_is_preloaded_once_before_others() -> None:
    library = find_library()
    assert library is not None
    once = guard_variables(library, "10.0.0.1", ["a", "b", "a"], {"LD_PRELOAD": "/lib/jemalloc.so"})
    assert once["LD_PRELOAD"] == f"{library}:/lib/jemalloc.so"
    assert once["PHALANX_GUARD_PEERS"] == "a,b"
    assert guard_variables(library, "10.0.0.1", ["a", "b"], once) == once


@pytest.mark.parametrize(
    ("host", "peers", "address"),
    [
        ("127.0.0.1", ["127.0.0.1", "localhost"], "127.0.0.1"),
        ("localhost", ["localhost"], "127.0.0.1"),
        ("::1", ["::1"], "::1"),
        # The name of this machine may be a loopback address only here.
        ("localhost", ["localhost", "192.0.2.1"], "*"),
        ("localhost", ["localhost", "no.such.host.invalid"], "*"),
        # Behind a gateway, the address in the cluster is not one of this machine.
        ("192.0.2.1", ["192.0.2.1", "192.0.2.2"], "*"),
        ("no.such.host.invalid", [], "*"),
    ],
)
def test_own_address(host: str, peers: list[str], address: str) -> None:
    found = find_own_address(host, peers)
    assert found.address == address
    assert bool(found.reason) == (address == "*")


def test_container_knows_itself_before_its_name_server_does() -> None:
    name = f"{os.uname().nodename}.no-such-service.invalid"
    assert find_own_address(name).address != "*"
