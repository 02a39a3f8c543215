"""The dependencies: each has an upper bound, and the lock has all of them, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTENT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OPTIONAL: dict[str, list[str]] = CONTENT["project"]["optional-dependencies"]
REQUIRED: list[str] = [*CONTENT["build-system"]["requires"], *CONTENT["project"]["dependencies"]]


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def test_every_dependency_has_an_upper_bound() -> None:
    every = REQUIRED + [each for extra in OPTIONAL.values() for each in extra]
    unbounded = [each for each in every if "<" not in each and not each.startswith("phalanx[")]
    assert unbounded == []


def test_lock_has_every_dependency_with_a_hash_and_no_address() -> None:
    header, *lines = (ROOT / "requirements-dev.lock").read_text().splitlines()
    assert re.fullmatch(r"# For Python 3\.\d+ on \w+ \w+\. Written by make lock\.", header)
    pattern = re.compile(r"([a-z0-9-]+)==[\w.+!]+ --hash=sha256:[0-9a-f]{64}")
    locked = [match and match[1] for match in map(pattern.fullmatch, lines)]
    wanted = REQUIRED + [each for extra in ("cpu", "dev", "audit") for each in OPTIONAL[extra]]
    missing = {name_of(each) for each in wanted} - {"phalanx"} - set(locked)
    assert missing == set(), "run make lock"
    assert None not in locked
