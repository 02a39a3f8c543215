"""Getting a published file, and making sure that it is the published one."""

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
    """Fetch `url` to the directory and check its MD5. `progress` is told bytes done and in all."""
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
        raise DataError(f"cannot download {url}: {error}; fetch it where there is a network, "
                        "and give it here with --source") from None  # fmt: skip
    if digest.hexdigest() != md5:
        raise DataError(f"{url} came with the MD5 {digest.hexdigest()}, not {md5}: "
                        "it is damaged, or another file")  # fmt: skip
    return path
