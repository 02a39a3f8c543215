"""What a container may not do, on engines of Docker's: gain privileges, or start endless processes.

The options of `docker run` and the settings of compose files and Swarm stacks say the same.
"""

from phalanx.launch.kube.manifest import Manifest

# Threads count as well, and TensorFlow starts several for each processor.
PIDS = 16384


def make_docker_options(user: int | None) -> list[str]:
    return [
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--pids-limit={PIDS}",
        *([] if user is None else [f"--user={user}"]),
    ]


def make_compose_settings(user: int | None) -> Manifest:
    return {
        **make_swarm_settings(user),
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": PIDS,
    }


def make_swarm_settings(user: int | None) -> Manifest:
    """Make what a stack can set; Swarm has no security options, and limits pids in `deploy`."""
    return {**({} if user is None else {"user": str(user)}), "cap_drop": ["ALL"]}
