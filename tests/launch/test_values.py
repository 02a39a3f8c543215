from __future__ import annotations

import pytest

from phalanx import ConfigurationError
from phalanx.cluster.spec import Role
from phalanx.launch.values import (
    parse_duration,
    parse_label,
    parse_pair,
    parse_per_role,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("2K", 2048), ("1.5GiB", 3 << 29), ("1t", 1 << 40)]
)
def test_size_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0G", "-1G", "G", "1X"])
def test_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5h", 5400), ("1d12h", 129_600), ("250ms", 0.25)]
)
def test_duration_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "1h 5m", "nan", "-1"])
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_duration(text)


def test_pair_keeps_everything_after_the_first_equals_sign() -> None:
    assert parse_pair("OPTIONS=a=b") == ("OPTIONS", "a=b")


def test_label_may_have_a_prefix() -> None:
    assert parse_label("kubernetes.io/arch=amd64") == ("kubernetes.io/arch", "amd64")
    assert parse_label("team=a=b") == ("team", "a=b")
    for text in ("team", "=a", "a/b/c=d", "/a=b", "a b=c"):
        with pytest.raises(ValueError, match="is not NAME=VALUE"):
            parse_label(text)


def test_amount_is_for_one_role_or_for_all() -> None:
    parse = parse_per_role(int)
    assert parse("data-worker=2") == {Role.DATA_WORKER: 2}
    assert parse("3") == dict.fromkeys(Role, 3)
    with pytest.raises(ConfigurationError, match="there is no role 'boss'"):
        parse("boss=2")
