"""Writes requirements-dev.lock: what CI and developers install, each file with its hash.

    python tools/lock.py

The hashes are those of the files for this platform and Python, which the first line names.
"""

import platform
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from phalanx.launch.containers.package_lock import resolve

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
EXTRAS = ("cpu", "dev", "audit")


def list_requirements(project: dict[str, object], extras: tuple[str, ...]) -> Iterator[str]:
    """Yield the requirements of these extras, and of those that they include."""
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    for extra in extras:
        for each in optional[extra]:
            if each.startswith("phalanx["):
                included = each.removeprefix("phalanx[").partition("]")[0]
                yield from list_requirements(project, tuple(included.split(",")))
            else:
                yield each


def main() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = content["project"]
    wanted = [
        *content["build-system"]["requires"],
        *project["dependencies"],
        *list_requirements(project, EXTRAS),
    ]
    packages = resolve(sorted(set(wanted)), (), {})
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    header = f"# For {python} on {platform.system()} {platform.machine()}. Written by make lock.\n"
    LOCK.write_text(header + "".join(f"{each.render()}\n" for each in packages))
    print(f"{LOCK.name}: {len(packages)} packages")


if __name__ == "__main__":
    main()
