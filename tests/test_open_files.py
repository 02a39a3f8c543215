"""The limit of open files."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from phalanx import ConfigurationError
from phalanx.open_files import allow_more_open_files, allow_open_files


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_limit_is_raised_if_it_is_too_low() -> None:
    allow_open_files(300)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300


def test_limit_is_never_lowered() -> None:
    allow_open_files(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256


def test_more_files_than_the_hard_limit_is_an_error(limits: tuple[int, int]) -> None:
    hard = limits[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("there is no hard limit here")
    with pytest.raises(ConfigurationError, match=f"hard limit of this process is {hard}"):
        allow_open_files(hard + 1)


def test_files_that_are_open_already_do_not_count() -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        allow_more_open_files(250)
        for _ in range(250):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
