"""Names the machine, or the container, in which a process id means this process and no other."""

from pathlib import Path


def identify_machine() -> str:
    """Return the name of this machine since its last start; empty if the system has none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
