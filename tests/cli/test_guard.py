"""`phalanx guard` as a user runs it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]

TF_CONFIG = (
    '{"cluster": {"worker": ["127.0.0.1:2222", "localhost:2223"]},'
    ' "task": {"type": "worker", "index": 1}}'
)
SHOW = ("--", "sh", "-c", 'echo "$PHALANX_GUARD_BIND $PHALANX_GUARD_PEERS"; exit 3')


def test_rules_come_from_tf_config(phalanx: Phalanx) -> None:
    done = phalanx("guard", *SHOW, TF_CONFIG=TF_CONFIG)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "127.0.0.1 127.0.0.1,localhost\n"
    assert not done.stderr


def test_rules_come_from_options(phalanx: Phalanx) -> None:
    given = ("--host", "127.0.0.2", "--peers", "localhost,127.0.0.3")
    assert phalanx("guard", *given, *SHOW).stdout == "127.0.0.2 localhost,127.0.0.3\n"


def test_dispatcher_is_a_host_of_the_job(phalanx: Phalanx) -> None:
    done = phalanx("guard", *SHOW, TF_CONFIG=TF_CONFIG, PHALANX_DATA_SERVICE="127.0.0.9:5050")
    assert done.stdout == "127.0.0.1 127.0.0.1,localhost,127.0.0.9\n"


def test_process_without_a_cluster_listens_on_loopback(phalanx: Phalanx) -> None:
    assert phalanx("guard", *SHOW).stdout == "127.0.0.1 \n"


def test_foreign_address_is_a_warning(phalanx: Phalanx) -> None:
    done = phalanx("guard", "--host", "192.0.2.1", "--peers", "192.0.2.2", *SHOW)
    assert done.stdout == "* 192.0.2.2\n"
    assert "192.0.2.1 is at 192.0.2.1, which is no address of this machine" in done.stderr


def test_guard_can_be_switched_off(phalanx: Phalanx) -> None:
    assert phalanx("guard", *SHOW, TF_CONFIG=TF_CONFIG, PHALANX_GUARD="off").stdout == " \n"


def test_wrong_usage_starts_nothing(phalanx: Phalanx) -> None:
    for given in ((), ("--", "no-such-command"), ("--hots", "a", "--", "true")):
        done = phalanx("guard", *given)
        assert done.returncode == 2, done.stderr
    done = phalanx("guard", "--", "true", TF_CONFIG="{")
    assert done.returncode == 2
    assert "TF_CONFIG cannot be used" in done.stderr
