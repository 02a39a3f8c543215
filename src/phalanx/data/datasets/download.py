"""Downloading a published file and checking its MD5."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from phalanx.errors import DataError

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60


def download(
    url: str, md5: str, directory: Path, *, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Download `url`; `progress` is called with the bytes read so far and in all."""
    path = directory / url.rpartition("/")[2]
    digest, done = hashlib.md5(usedforsecurity=False), 0
    try:
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response,
            path.open("wb") as file,
        ):
            total = int(response.headers.get("Content-Length") or 0)
            while block := response.read(_BLOCK):
                file.write(block)
                digest.update(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise DataError(f"cannot download {url}: {error}; download it on another machine, "
                        "and name it with --source") from None  # fmt: skip
    if digest.hexdigest() != md5:
        raise DataError(f"{url} has the MD5 {digest.hexdigest()}, not {md5}: "
                        "it is damaged, or another file")  # fmt: skip
    return path
