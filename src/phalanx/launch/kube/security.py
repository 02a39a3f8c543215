"""The security context of pods: Kubernetes' restricted Pod Security Standard by default."""

from phalanx.launch.kube.manifest import Manifest


def make_pod_security(run_as_user: int | None, fs_group: int | None) -> Manifest:
    """Make the security context of a pod; only user 0, if it is asked for, may be root."""
    return {
        "securityContext": {
            "runAsNonRoot": run_as_user != 0,
            **({} if run_as_user is None else {"runAsUser": run_as_user}),
            **({} if fs_group is None else {"fsGroup": fs_group}),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    }


def make_container_security(read_only: bool = False) -> Manifest:
    """Make the security context of a container, perhaps with a read-only root file system."""
    return {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **({"readOnlyRootFilesystem": True} if read_only else {}),
        }
    }
