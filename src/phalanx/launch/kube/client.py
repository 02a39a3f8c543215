"""The few calls to the Kubernetes API that a launcher makes, with plain data going in and out."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.errors import ConfigurationError, LaunchError
from phalanx.launch.kube.manifest import Manifest

_ANSWER_SECONDS = 30.0
# A log that says nothing for a while is asked for again.
_LOG_SECONDS = 3600.0
_AGAIN_SECONDS = 1.0


# The class of the client, and its word for the kind.
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
_VERBS = ("create", "read", "delete")

# Group, version and plural of what operators add.
CUSTOM = {
    "TFJob": ("kubeflow.org", "v1", "tfjobs"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    "TrainingRuntime": ("trainer.kubeflow.org", "v1alpha1", "trainingruntimes"),
}


@dataclass(frozen=True)
class _Calls:
    create: Callable[..., Any]
    read: Callable[..., Any]
    delete: Callable[..., Any]


class NotThereError(LaunchError):
    """The API has no such object."""


class TakenError(LaunchError):
    """The API has an object of this name already."""


class Client:
    """Talks to the cluster of a context in the user's kubeconfig, or to the one we are in."""

    def __init__(self, context: str | None = None) -> None:
        self.context = context
        self._api: Any = None

    def create(self, manifest: Manifest) -> None:
        """Make an object."""
        create = self._calls(manifest["kind"]).create
        self._ask(create, manifest["metadata"]["namespace"], manifest)

    def delete(self, kind: str, name: str, namespace: str) -> None:
        """Remove an object and what belongs to it; that it is gone already is no error."""
        delete = self._calls(kind).delete
        with contextlib.suppress(NotThereError):
            self._ask(delete, name, namespace, propagation_policy="Background")

    def read(self, kind: str, name: str, namespace: str) -> Manifest:
        """An object as it is now."""
        read = self._calls(kind).read
        return self._ask(read, name, namespace)

    def pods(self, selector: str, namespace: str) -> list[Manifest]:
        """The pods with these labels, the oldest first."""
        core = self._module().CoreV1Api(self._api)
        found = self._ask(core.list_namespaced_pod, namespace, label_selector=selector)
        pods: list[Manifest] = found.get("items", [])
        return sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))

    def complaints(self, names: Collection[str], namespace: str) -> list[str]:
        """Why no pods can be made for the objects of these names, the newest last."""
        core = self._module().CoreV1Api(self._api)
        found = self._ask(core.list_namespaced_event, namespace, field_selector="type=Warning")
        events = sorted(found.get("items", []), key=_time_of)
        return [
            str(event.get("message", ""))
            for event in events
            if event.get("involvedObject", {}).get("name") in names
            and event.get("reason", "").startswith("FailedCreate")
        ]

    def log(self, pod: str, namespace: str, follow: bool) -> Iterator[str]:
        """What a pod has printed; with `follow`, until it ends."""
        partial = b""
        for chunk in self._log_chunks(pod, namespace, follow):
            *lines, partial = (partial + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if partial:
            yield partial.decode(errors="replace")

    def _log_chunks(self, pod: str, namespace: str, follow: bool) -> Iterator[bytes]:
        """A connection that breaks, as one does that is silent for long, is made anew."""
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        core = self._module().CoreV1Api(self._api)
        heard: float | None = None
        while True:
            since = {} if heard is None else {"since_seconds": _whole_seconds_since(heard)}
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
                    heard = time.monotonic()
                    yield chunk
                return
            except HTTPError as error:
                if not follow:
                    raise LaunchError(f"the Kubernetes API broke off: {error}") from None
            finally:
                response.release_conn()
            time.sleep(_AGAIN_SECONDS)

    def _calls(self, kind: str) -> _Calls:
        """How an object of this kind is made, read and removed."""
        module = self._module()
        if kind in CUSTOM:
            return self._custom_calls(kind)
        group, noun = _KINDS[kind]
        api = getattr(module, group)(self._api)
        return _Calls(*(getattr(api, f"{verb}_namespaced_{noun}") for verb in _VERBS))

    def _custom_calls(self, kind: str) -> _Calls:
        api = self._module().CustomObjectsApi(self._api)
        group, version, plural = CUSTOM[kind]

        def create(namespace: str, manifest: Manifest, **more: Any) -> Any:
            call = api.create_namespaced_custom_object
            return call(group, version, namespace, plural, manifest, **more)

        def read(name: str, namespace: str, **more: Any) -> Any:
            call = api.get_namespaced_custom_object
            return call(group, version, namespace, plural, name, **more)

        def delete(name: str, namespace: str, **more: Any) -> Any:
            call = api.delete_namespaced_custom_object
            return call(group, version, namespace, plural, name, **more)

        return _Calls(create, read, delete)

    def _module(self) -> Any:
        """The official client, with a connection made when it is first needed."""
        try:
            from kubernetes import client, config  # noqa: PLC0415
        except ImportError:
            raise ConfigurationError(
                "the Kubernetes client is not installed: pip install 'phalanx[kubernetes]', "
                "or use --dry-run and kubectl apply"
            ) from None
        if self._api is None:
            loader: Any = config
            try:
                try:
                    loader.load_kube_config(context=self.context)
                except config.ConfigException:
                    if self.context is not None:
                        raise
                    loader.load_incluster_config()
                self._api = client.ApiClient()
            except (config.ConfigException, OSError) as error:
                raise ConfigurationError(
                    f"no Kubernetes cluster is known here ({error}): set KUBECONFIG or --context"
                ) from None
        return client

    def _ask(self, call: Callable[..., Any], *arguments: object, **more: object) -> Manifest:
        """The API's answer as it came: the client's own classes refuse what they do not know."""
        response = self._open(call, *arguments, _request_timeout=_ANSWER_SECONDS, **more)
        answer: Manifest = json.loads(response.data)
        return answer

    def _open(self, call: Callable[..., Any], *arguments: object, **more: object) -> Any:
        """The response; what the API says went wrong becomes an error of one sentence."""
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            response = call(*arguments, _preload_content=False, **more)
        except ApiException as error:
            raise _error(error.status, error.body) from None
        except (HTTPError, OSError) as error:
            raise LaunchError(f"the Kubernetes API does not answer: {error}") from None
        if response.status >= 400:
            raise _error(response.status, response.data)
        return response


def _whole_seconds_since(moment: float) -> int:
    """Rounded down, so that the last line of a silent pod is not told again each time."""
    return max(1, int(time.monotonic() - moment))


def _time_of(event: Manifest) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _error(status: int, body: str | bytes | None) -> LaunchError:
    kind = {404: NotThereError, 409: TakenError}.get(status, LaunchError)
    try:
        return kind(str(json.loads(body or "")["message"]))
    except (ValueError, KeyError, TypeError):
        return kind(f"the Kubernetes API said {status}")
