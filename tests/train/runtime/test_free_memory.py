"""The free memory of parameter servers."""

from __future__ import annotations

import pytest

from phalanx.cluster import Role, Task
from phalanx.errors import ConfigurationError
from phalanx.train.runtime.free_memory import Need, check_fits, find_free

MEMINFO = "MemTotal:       24684100 kB\nMemFree:  1000 kB\nMemAvailable:   18289352 kB\n"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"/proc/meminfo": MEMINFO}, 18289352 * 1024),
        ({"/proc/meminfo": MEMINFO, "/sys/fs/cgroup/memory.max": "max\n"}, 18289352 * 1024),
        ({"/proc/meminfo": MEMINFO, "/sys/fs/cgroup/memory.max": "1000000\n"}, 1_000_000),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "2000\n"}, 2000),
        ({"/proc/meminfo": ""}, None),
    ],
)
def test_free_memory_is_that_of_the_host_or_the_container(
    files: dict[str, str], free: int | None
) -> None:
    assert find_free(files) == free


def make_needs(copied: int = 0) -> list[Need]:
    return [
        Need(Task(Role.PS, index), "host:1", "/job:ps", 3_000_000_000, copied) for index in (0, 1)
    ]


def test_parameter_servers_of_one_host_share_its_memory() -> None:
    check_fits("host", make_needs()[:1], 4_000_000_000)
    with pytest.raises(
        ConfigurationError, match=r"ps-0, ps-1 at host must hold 6\.00 GB .* 4\.00 GB of memory are"
    ):
        check_fits("host", make_needs(), 4_000_000_000)


def test_missing_memory_for_the_copy_of_a_save_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_fits("host", make_needs(1_000_000_000), 8_000_000_000)
    assert not caplog.records
    check_fits("host", make_needs(2_000_000_000), 8_000_000_000)
    assert "set --no-save-in-background" in caplog.text
