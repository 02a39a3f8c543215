"""The progress that a run reports to Kubeflow Trainer."""

from __future__ import annotations

import http.server
import json
import logging
import os
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.launch.kubeflow_schemas import TRAINER_STATUS
from tests.servers.kubernetes.server import make_certificate
from tests.train.small_experiment import Line

import phalanx
from phalanx.cluster.progress import RunProgress
from phalanx.train.runtime import trainjob_status
from phalanx.train.runtime.trainjob_status import (
    TrainJobStatus,
    describe_progress,
    find_trainjob_status,
)

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/digits/status"


class Trainer(http.server.ThreadingHTTPServer):
    """Answers reports with a code, and keeps them."""

    code = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[str, str | None, Any]] = []

    @property
    def last_metrics(self) -> dict[str, str]:
        status = self.received[-1][2]["trainerStatus"]
        return {each["name"]: each["value"] for each in status["metrics"]}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Trainer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.path, self.headers.get("Authorization"), body))
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    certificate, key = tmp_path / "ca.crt", tmp_path / "key.pem"
    make_certificate(certificate, key, "127.0.0.1")
    (tmp_path / "token").write_text("the token\n")
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificate, key)
    with Trainer() as server:
        server.socket = secured.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"https://127.0.0.1:{server.server_port}{PATH}"
        monkeypatch.setenv(trainjob_status.URL_VARIABLE, address)
        monkeypatch.setenv(trainjob_status.CERTIFICATE_VARIABLE, str(certificate))
        monkeypatch.setenv(trainjob_status.TOKEN_VARIABLE, str(tmp_path / "token"))
        yield server
        server.shutdown()
        thread.join()


def make_status() -> TrainJobStatus:
    status = find_trainjob_status(os.environ)
    assert status is not None
    return status


def test_run_reports_its_progress_to_trainer(trainer: Trainer, tmp_path: Path) -> None:
    config = phalanx.RunConfig(model_dir=str(tmp_path / "model"), train_steps=20)
    assert phalanx.run(Line(), config).step == 20
    # The first is sent at the beginning, the last at the end; both come within ten seconds.
    assert {(path, token) for path, token, _ in trainer.received} == {(PATH, "Bearer the token")}
    for _, _, report in trainer.received:
        jsonschema.validate(report, TRAINER_STATUS)
    assert trainer.received[0][2]["trainerStatus"]["progressPercentage"] == 0
    assert trainer.received[-1][2]["trainerStatus"]["progressPercentage"] == 100
    assert trainer.last_metrics["step"] == "20"
    assert float(trainer.last_metrics["loss"]) > 0


@pytest.mark.parametrize(("pause", "steps"), [(1e9, ["0", "3"]), (0, ["0", "1", "2", "3"])])
def test_last_report_is_sent_however_short_the_pause(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, pause: float, steps: list[str]
) -> None:
    monkeypatch.setattr(trainjob_status, "_SECONDS_BETWEEN_REPORTS", pause)
    status = make_status()
    for step in range(3):
        status.report(RunProgress("chief-0", step))
        for thread in threading.enumerate():
            if thread.name == "phalanx-trainjob-status":
                thread.join(60)
    status.report(RunProgress("chief-0", 3, activity="finished"))
    sent = [report["trainerStatus"]["metrics"][0] for _, _, report in trainer.received]
    assert [each["value"] for each in sent] == steps


@pytest.mark.parametrize("fault", ["refused", "plain", "no token", "other certificate"])
def test_nothing_fails_if_trainer_takes_no_progress(
    trainer: Trainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    if fault == "refused":
        trainer.code = 403
    elif fault == "plain":
        monkeypatch.setenv(trainjob_status.URL_VARIABLE, f"http://127.0.0.1:1{PATH}")
    elif fault == "no token":
        (tmp_path / "token").unlink()
    else:
        make_certificate(tmp_path / "ca.crt", tmp_path / "key.pem", "127.0.0.1")
    status = make_status()
    with caplog.at_level(logging.WARNING, "phalanx"):
        for step in range(3):
            status.report(RunProgress("chief-0", step, activity="finished"))
    warnings = [each for each in caplog.messages if "status of the TrainJob" in each]
    assert len(warnings) == 1
    assert bool(trainer.received) is (fault == "refused")


def test_unknown_values_are_left_out() -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    found = describe_progress(RunProgress("chief-0", 7, seconds_left=1e12), now)
    jsonschema.validate({"trainerStatus": found}, TRAINER_STATUS)
    assert found == {
        "lastUpdatedTime": "2026-01-31T00:00:00Z",
        "estimatedRemainingSeconds": 2**31 - 1,
        "metrics": [{"name": "step", "value": "7"}],
    }
