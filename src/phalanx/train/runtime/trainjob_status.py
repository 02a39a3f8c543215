"""Sends the progress of a run to Kubeflow Trainer, which shows it in the status of the TrainJob.

Trainer 2.2 and newer take it if their feature gate TrainJobStatus is on. They then tell every pod
the address, a certificate and a token, which they renew.
"""

import json
import logging
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phalanx.cluster.progress import RunProgress

LOG = logging.getLogger("phalanx")

URL_VARIABLE = "KUBEFLOW_TRAINER_SERVER_URL"
CERTIFICATE_VARIABLE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN_VARIABLE = "KUBEFLOW_TRAINER_SERVER_TOKEN"

# Trainer asks for no more than one report every 5 seconds.
_SECONDS_BETWEEN_REPORTS = 10.0
_ANSWER_SECONDS = 5.0
_LARGEST_INTEGER = 2**31 - 1


class TrainJobStatus:
    """The status of a TrainJob, as far as the training tells it.

    Reports are sent from a thread, so that training does not wait for an answer. The last one is
    waited for. A report that cannot be sent is left out, and the first such is logged.

    Args:
        url: Where to send the status.
        certificate: A file with the certificates by which the server is known.
        token: A file with the token of this pod.
    """

    def __init__(self, url: str, certificate: Path, token: Path) -> None:
        self._url = url
        self._certificate = certificate
        self._token = token
        self._next = 0.0
        self._sending: threading.Thread | None = None
        self._is_failing = False

    def report(self, progress: RunProgress) -> None:
        """Send the progress if the last report was some time ago, or if the run has finished."""
        is_last = progress.activity == "finished"
        if self._sending is not None and is_last:
            self._sending.join(_ANSWER_SECONDS)
        is_sending = self._sending is not None and self._sending.is_alive()
        if is_sending or (time.monotonic() < self._next and not is_last):
            return
        self._next = time.monotonic() + _SECONDS_BETWEEN_REPORTS
        status = describe_progress(progress, datetime.now(UTC))
        self._sending = threading.Thread(
            target=self._send, args=(status,), name="phalanx-trainjob-status", daemon=True
        )
        self._sending.start()
        if is_last:
            self._sending.join(_ANSWER_SECONDS)

    def _send(self, status: Mapping[str, Any]) -> None:
        try:
            if not self._url.startswith("https://"):
                raise ValueError(f"{URL_VARIABLE} is {self._url}, which does not begin with https:")
            request = urllib.request.Request(
                self._url,
                data=json.dumps({"trainerStatus": status}).encode(),
                headers={
                    "Authorization": f"Bearer {self._token.read_text().strip()}",
                    "Content-Type": "application/json",
                },
            )
            trusted = ssl.create_default_context(cafile=str(self._certificate))
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=trusted):
                pass
        except (OSError, ValueError) as error:
            if not self._is_failing:
                LOG.warning("the status of the TrainJob does not show the progress: %s", error)
            self._is_failing = True


def find_trainjob_status(environ: Mapping[str, str]) -> TrainJobStatus | None:
    """Return the status of this pod's TrainJob, if Kubeflow Trainer takes the progress."""
    url, certificate, token = (
        environ.get(name, "") for name in (URL_VARIABLE, CERTIFICATE_VARIABLE, TOKEN_VARIABLE)
    )
    if not url or not certificate or not token:
        return None
    return TrainJobStatus(url, Path(certificate), Path(token))


def describe_progress(progress: RunProgress, now: datetime) -> dict[str, Any]:
    """Return the fields of `status.trainerStatus`.

    >>> found = describe_progress(RunProgress("chief-0", 40, 100, 0.25), datetime(2026, 1, 31))
    >>> found["progressPercentage"], found["lastUpdatedTime"]
    (40, '2026-01-31T00:00:00Z')
    >>> found["metrics"]
    [{'name': 'step', 'value': '40'}, {'name': 'loss', 'value': '0.25'}]
    """
    found: dict[str, Any] = {"lastUpdatedTime": now.strftime("%Y-%m-%dT%H:%M:%SZ")}
    if progress.total:
        found["progressPercentage"] = min(100, 100 * progress.step // progress.total)
    if progress.seconds_left is not None:
        found["estimatedRemainingSeconds"] = min(round(progress.seconds_left), _LARGEST_INTEGER)
    values = {
        "step": str(progress.step),
        "loss": "" if progress.loss is None else f"{progress.loss:.6g}",
        "examples_per_second": (
            "" if progress.examples_per_second is None else f"{progress.examples_per_second:.6g}"
        ),
    }
    found["metrics"] = [{"name": name, "value": value} for name, value in values.items() if value]
    return found
