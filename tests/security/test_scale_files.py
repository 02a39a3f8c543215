"""The files of an elastic job, in a log directory that others can write."""

import os
from pathlib import Path

import pytest

from phalanx.errors import LaunchError
from phalanx.launch.processes.membership_file import read_membership, take_request

POSSIBLE = range(1, 5)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"workers": 100000000}',
        '{"workers": -5}',
        '{"workers": 0}',
        '{"workers": true}',
        '{"workers": 1e999}',
        '{"workers": ' + "9" * 5000 + "}",
    ],
    ids=range(7),
)
def test_requests_that_phalanx_scale_does_not_make_count_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "scale.json").write_text(text)
    assert take_request(tmp_path, POSSIBLE) is None
    (tmp_path / "scale.json").write_text('{"workers": 3}')
    assert take_request(tmp_path, POSSIBLE) == 3


def test_links_and_pipes_count_as_none(tmp_path: Path) -> None:
    (tmp_path / "target").write_text('{"workers": 3}')
    (tmp_path / "scale.json").symlink_to(tmp_path / "target")
    assert take_request(tmp_path, POSSIBLE) is None
    (tmp_path / "scale.json").unlink()
    os.mkfifo(tmp_path / "scale.json")
    assert take_request(tmp_path, POSSIBLE) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another user")
def test_a_request_of_another_user_counts_as_none(tmp_path: Path) -> None:
    # Run as another user than root, whose files everybody trusts.
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    (tmp_path / "scale.json").write_text('{"workers": 3}')
    os.chown(tmp_path / "scale.json", 12345, 12345)
    try:
        os.seteuid(54321)
        assert take_request(tmp_path, POSSIBLE) is None
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"pid": "../self", "generation": "1", "members": "a", "minimum": "0", '
     '"maximum": 9, "wanted": 1, "chiefs": 1}'],
    ids=range(2),
)  # fmt: skip
def test_a_damaged_membership_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "membership.json").write_text(text)
    with pytest.raises(LaunchError, match=r"membership\.json cannot be read"):
        read_membership(tmp_path)
