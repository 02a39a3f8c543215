"""Checks the locked packages for known vulnerabilities, and writes their SBOM (CycloneDX).

    python tools/audit.py

Exits with 1 if a package has a known vulnerability. Without a network, or without the tools, it
says what it has skipped, and exits with 0.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
SBOM = ROOT / "build/sbom.json"
_SECONDS = 600


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run a module; None, and a message, if it cannot be run."""
    if importlib.util.find_spec(module) is None:
        print(f"skipped: {module} is not installed (pip install '.[audit]')")
        return None
    command = [sys.executable, "-m", module, *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"skipped: {module} did not finish within {_SECONDS} s")
        return None


def find_vulnerabilities() -> list[str]:
    """Ask the vulnerability service about every locked package."""
    options = ["--requirement", str(LOCK), "--require-hashes", "--disable-pip"]
    done = run("pip_audit", *options, "--format=json", "--progress-spinner=off")
    if done is None:
        return []
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines() or ["no reason was given"]
        print(f"skipped: pip-audit cannot reach its service: {lines[-1]}")
        return []
    print(f"{len(packages)} packages were checked for known vulnerabilities")
    return [
        f"{each['name']} {each['version']}: {found['id']}, fixed in "
        f"{', '.join(found['fix_versions']) or 'no version yet'}"
        for each in packages
        for found in each.get("vulns", [])
    ]


def write_sbom() -> None:
    SBOM.parent.mkdir(exist_ok=True)
    done = run("cyclonedx_py", "requirements", str(LOCK), "--output-file", str(SBOM))
    if done is not None and done.returncode:
        raise SystemExit(done.stderr)
    if done is not None:
        print(f"{SBOM.relative_to(ROOT)} is written")


def main() -> int:
    write_sbom()
    found = find_vulnerabilities()
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
