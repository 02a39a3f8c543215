"""The calls to the Kubernetes API that launchers make, with manifests going in and out."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

from phalanx.errors import ConfigurationError, LaunchError, NotFoundError
from phalanx.launch.kube.manifest import Manifest

_ANSWER_SECONDS = 30.0
# The connection to a log that prints nothing for so long is opened again.
_LOG_SECONDS = 3600.0
_RECONNECT_SECONDS = 1.0
# The API ends a watch after this time, and a new one continues.
_WATCH_SECONDS = 240
# Between two lists, for users who may list pods but not watch them.
_LIST_SECONDS = 10.0
_PATCH_TYPE = "application/merge-patch+json"

KubernetesModule: TypeAlias = Any
"""The module `kubernetes.client` or `kubernetes.config`."""
Response: TypeAlias = Any
"""A `urllib3.HTTPResponse`."""
ApiCall: TypeAlias = Callable[..., Response]

# The API class of the official client, and its noun for the kind.
_KINDS = {
    "Deployment": ("AppsV1Api", "deployment"),
    "Job": ("BatchV1Api", "job"),
    "NetworkPolicy": ("NetworkingV1Api", "network_policy"),
    "PodDisruptionBudget": ("PolicyV1Api", "pod_disruption_budget"),
    "Role": ("RbacAuthorizationV1Api", "role"),
    "RoleBinding": ("RbacAuthorizationV1Api", "role_binding"),
    "Secret": ("CoreV1Api", "secret"),
    "Service": ("CoreV1Api", "service"),
    "ServiceAccount": ("CoreV1Api", "service_account"),
}

# Group, version and plural of the resources of operators and schedulers. Several groups have a
# PodGroup: its kind is written with the group.
CUSTOM = {
    "PodGroup.scheduling.k8s.io": ("scheduling.k8s.io", "v1beta1", "podgroups"),
    "PodGroup.scheduling.volcano.sh": ("scheduling.volcano.sh", "v1beta1", "podgroups"),
    "PodGroup.scheduling.x-k8s.io": ("scheduling.x-k8s.io", "v1alpha1", "podgroups"),
    "TFJob": ("kubeflow.org", "v1", "tfjobs"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    "TrainingRuntime": ("trainer.kubeflow.org", "v1alpha1", "trainingruntimes"),
}


class AlreadyExistsError(LaunchError):
    """The API already has an object of this kind and name."""


class ForbiddenError(LaunchError):
    """The user may not do this, or a rule of the cluster forbids it."""


class ExpiredError(LaunchError):
    """A watch cannot continue, because the API no longer has the changes since its list."""


def full_kind(manifest: Manifest) -> str:
    """Return the kind of an object, with its group if several groups have one."""
    kind = str(manifest["kind"])
    group = str(manifest["apiVersion"]).partition("/")[0]
    return f"{kind}.{group}" if f"{kind}.{group}" in CUSTOM else kind


class Client:
    """A connection to the cluster of a kubeconfig context, or to the one this process runs in."""

    def __init__(self, context: str | None = None) -> None:
        self.context = context
        self._api: Any = None

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object and return it as the API has stored it."""
        call = self._call("create", full_kind(manifest), manifest["metadata"]["namespace"])
        return self._ask(call, body=manifest)

    def read(self, kind: str, name: str, namespace: str) -> Manifest:
        """Return an object as it is now; raise a NotFoundError if there is none."""
        return self._ask(self._call("read", kind, namespace), name=name)

    def set_owner(self, owner: Manifest, kind: str, name: str, namespace: str) -> None:
        """Let the cluster delete an object together with its owner."""
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        change = {"metadata": {"ownerReferences": [reference]}}
        # Without a type, the client would send a list: a JSON patch.
        header = {"_content_type": _PATCH_TYPE}
        self._ask(self._call("patch", kind, namespace), name=name, body=change, **header)

    def version(self) -> tuple[int, int]:
        """Return the version of the API server, such as (1, 34)."""
        found = self._ask(self._module().VersionApi(self._api).get_code)
        digits = [re.sub(r"\D.*", "", str(found.get(part, ""))) for part in ("major", "minor")]
        return int(digits[0] or 0), int(digits[1] or 0)

    def delete(self, kind: str, name: str, namespace: str) -> None:
        """Delete an object and its dependents; an object that is already gone is no error."""
        delete = self._call("delete", kind, namespace)
        with contextlib.suppress(NotFoundError):
            self._ask(delete, name=name, propagation_policy="Background")

    def pods(self, selector: str, namespace: str) -> list[Manifest]:
        """Return the pods with these labels, the oldest first."""
        return _sort(self._list_pods(selector, namespace)[0])

    def watch_pods(self, selector: str, namespace: str) -> Iterator[list[Manifest]]:
        """Yield the pods with these labels, the oldest first, now and after each change."""
        while True:
            listed, version = self._list_pods(selector, namespace)
            pods = {pod["metadata"]["name"]: pod for pod in listed}
            yield _sort(pods.values())
            try:
                for change in self._changes(selector, namespace, version):
                    pod = change["object"]
                    if change["type"] == "DELETED":
                        pods.pop(pod["metadata"]["name"], None)
                    else:
                        pods[pod["metadata"]["name"]] = pod
                    yield _sort(pods.values())
            except ExpiredError:
                time.sleep(_RECONNECT_SECONDS)
            except ForbiddenError:
                time.sleep(_LIST_SECONDS)

    def _list_pods(self, selector: str, namespace: str) -> tuple[list[Manifest], str]:
        """Return the pods and the version of the list, from which a watch can continue."""
        core = self._module().CoreV1Api(self._api)
        found = self._ask(core.list_namespaced_pod, namespace, label_selector=selector)
        return found.get("items", []), str(found.get("metadata", {}).get("resourceVersion", ""))

    def _changes(self, selector: str, namespace: str, version: str) -> Iterator[Manifest]:
        """Yield the changes of pods since a version, without an end."""
        core = self._module().CoreV1Api(self._api)
        while True:
            watch = self._open(
                core.list_namespaced_pod,
                namespace,
                label_selector=selector,
                resource_version=version,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_SECONDS,
                _request_timeout=(_ANSWER_SECONDS, _WATCH_SECONDS + _ANSWER_SECONDS),
            )
            for line in _read_lines(watch):
                change: Manifest = json.loads(line)
                if change["type"] == "ERROR":
                    status = change["object"]
                    raise _make_error(status.get("code", 500), json.dumps(status))
                version = str(change["object"]["metadata"].get("resourceVersion", version))
                if change["type"] != "BOOKMARK":
                    yield change

    def warnings(self, names: Collection[str], namespace: str) -> list[str]:
        """Return why no pods can be created for the objects of these names, the newest last.

        A name that ends in a hyphen stands for all that begin with it, such as ReplicaSets.
        """
        core = self._module().CoreV1Api(self._api)
        found = self._ask(core.list_namespaced_event, namespace, field_selector="type=Warning")
        failed = [
            (str(event.get("lastTimestamp") or event.get("eventTime") or ""), event.get("message"))
            for event in found.get("items", [])
            if _concerns(event.get("involvedObject", {}).get("name", ""), names)
            and event.get("reason", "").startswith("FailedCreate")
        ]
        return [str(message or "") for _, message in sorted(failed, key=lambda each: each[0])]

    def log(self, pod: str, namespace: str, follow: bool) -> Iterator[str]:
        """Yield the lines that a pod has printed; with `follow`, until it ends."""
        yield from _split_lines(self._log_chunks(pod, namespace, follow))

    def _log_chunks(self, pod: str, namespace: str, follow: bool) -> Iterator[bytes]:
        """Reconnect when the connection breaks, as it does after a long silence."""
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        core = self._module().CoreV1Api(self._api)
        last_chunk_at: float | None = None
        while True:
            since = {}
            if last_chunk_at is not None:
                # Rounded down, so that a silent pod's last line is not repeated each time.
                since["since_seconds"] = max(1, int(time.monotonic() - last_chunk_at))
            response = self._open(
                core.read_namespaced_pod_log,
                pod,
                namespace,
                follow=follow,
                _request_timeout=(_ANSWER_SECONDS, _LOG_SECONDS),
                **since,
            )
            try:
                for chunk in response.stream():
                    last_chunk_at = time.monotonic()
                    yield chunk
                return
            except HTTPError as error:
                if not follow:
                    raise LaunchError(
                        f"the connection to the Kubernetes API broke: {error}"
                    ) from None
            finally:
                response.release_conn()
            time.sleep(_RECONNECT_SECONDS)

    def _call(self, verb: str, kind: str, namespace: str) -> ApiCall:
        module = self._module()
        if kind in CUSTOM:
            group, version, plural = CUSTOM[kind]
            verb = "get" if verb == "read" else verb
            custom = getattr(module.CustomObjectsApi(self._api), f"{verb}_namespaced_custom_object")
            return partial(custom, group=group, version=version, namespace=namespace, plural=plural)
        api, noun = _KINDS[kind]
        method = getattr(getattr(module, api)(self._api), f"{verb}_namespaced_{noun}")
        return partial(method, namespace=namespace)

    def _module(self) -> KubernetesModule:
        try:
            from kubernetes import client, config  # noqa: PLC0415
        except ImportError:
            raise ConfigurationError(
                "the Kubernetes client is not installed: pip install 'phalanx[kubernetes]', "
                "or use --dry-run and kubectl apply"
            ) from None
        if self._api is None:
            untyped: KubernetesModule = config
            try:
                try:
                    untyped.load_kube_config(context=self.context)
                except config.ConfigException:
                    if self.context is not None:
                        raise
                    untyped.load_incluster_config()
                self._api = client.ApiClient()
            except (config.ConfigException, OSError) as error:
                raise ConfigurationError(
                    f"no Kubernetes cluster is known here ({error}): set KUBECONFIG or --context"
                ) from None
        return client

    def _ask(self, call: ApiCall, *arguments: object, **more: object) -> Manifest:
        """Return the API's answer as plain data: the client's classes reject unknown fields."""
        response = self._open(call, *arguments, _request_timeout=_ANSWER_SECONDS, **more)
        answer: Manifest = json.loads(response.data)
        return answer

    def _open(self, call: ApiCall, *arguments: object, **more: object) -> Response:
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            response = call(*arguments, _preload_content=False, **more)
        except ApiException as error:
            raise _make_error(error.status, error.body) from None
        except (HTTPError, OSError) as error:
            raise LaunchError(f"the Kubernetes API does not answer: {error}") from None
        if response.status >= 400:
            raise _make_error(response.status, response.data)
        return response


def _read_lines(response: Response) -> Iterator[str]:
    """Yield the lines of a response; one whose connection breaks ends."""
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        yield from _split_lines(response.stream())
    except HTTPError:
        time.sleep(_RECONNECT_SECONDS)
    finally:
        response.release_conn()


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    partial = b""
    for chunk in chunks:
        *lines, partial = (partial + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    if partial:
        yield partial.decode(errors="replace")


def _sort(pods: Iterable[Manifest]) -> list[Manifest]:
    return sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))


def _concerns(name: str, names: Collection[str]) -> bool:
    return name in names or any(each.endswith("-") and name.startswith(each) for each in names)


def _make_error(status: int, body: str | bytes | None) -> LaunchError:
    kinds = {
        403: ForbiddenError,
        404: NotFoundError,
        409: AlreadyExistsError,
        410: ExpiredError,
    }
    kind = kinds.get(status, LaunchError)
    try:
        return kind(str(json.loads(body or "")["message"]))
    except (ValueError, KeyError, TypeError):
        return kind(f"the Kubernetes API answered with status {status}")
