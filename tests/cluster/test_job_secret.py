from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.cluster.job_secret import FILE_VARIABLE, VARIABLE, make_secret, read_secret
from phalanx.errors import ClusterError


def test_secrets_differ_and_can_be_read() -> None:
    first, second = make_secret(), make_secret()
    assert first != second
    assert read_secret({VARIABLE: first}) == first.encode()
    assert read_secret({}) is None
    assert read_secret({VARIABLE: ""}) is None


def test_secret_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(make_secret() + "\n")
    path.chmod(0o600)
    assert read_secret({FILE_VARIABLE: str(path)}) == path.read_bytes().strip()
    path.chmod(0o640)
    with pytest.raises(ClusterError, match="other users can read: chmod 600"):
        read_secret({FILE_VARIABLE: str(path)})
    with pytest.raises(ClusterError, match="cannot be read"):
        read_secret({FILE_VARIABLE: str(tmp_path / "none")})


@pytest.mark.parametrize("text", ["short", "x" * 5000])
def test_secret_of_a_wrong_size_is_an_error(text: str) -> None:
    with pytest.raises(ClusterError, match=f"has {len(text)} bytes: use 16 to 4096"):
        read_secret({VARIABLE: text})
