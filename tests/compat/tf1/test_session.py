"""The sessions of TensorFlow 1 programs on clusters."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
from tests.compat.tf1.test_cluster_integration import free_ports

from phalanx.compat.tf1 import session, train


@pytest.fixture(scope="module")
def target() -> str:
    server = tf.train.Server.create_local_server()
    found: str = server.target
    return found


def chief(target: str) -> Any:
    return train.MonitoredTrainingSession(target)


def worker(target: str) -> Any:
    return train.MonitoredTrainingSession(target, is_chief=False)


def estimator_chief(target: str) -> Any:
    creator = session.make_session_creator(
        tf.train.Scaffold(),
        is_chief=True,
        master=target,
        config=tf.ConfigProto(),
        find_checkpoint=lambda: None,
    )
    return tf.train.MonitoredSession(creator)


def supervisor(target: str) -> Any:
    return train.Supervisor(logdir=None).prepare_or_wait_for_session(target)


@pytest.mark.parametrize("create", [chief, worker, estimator_chief, supervisor])
def test_step_that_waits_for_a_peer_has_a_limit(
    create: Callable[[str], Any], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STEP_SECONDS", 1)
    with tf.Graph().as_default():
        tokens = tf.FIFOQueue(1, [tf.int32], shared_name=create.__name__)
        token = tokens.dequeue()
        with pytest.raises(tf.errors.DeadlineExceededError), create(target) as opened:
            opened.run(token)


def test_limit_of_the_program_is_kept() -> None:
    own = tf.ConfigProto(operation_timeout_in_ms=5)
    assert session.limit_waits("grpc://localhost:1", own) is own
    assert session.limit_waits("grpc://localhost:1", None).operation_timeout_in_ms == 7_200_000
    # A session in this process waits for nobody.
    assert session.limit_waits("", None) is None


def cluster_config(task_type: str) -> Any:
    addresses = [f"localhost:{port}" for port in free_ports(3)]
    spec = {"chief": addresses[:1], "worker": addresses[1:2], "ps": addresses[2:]}
    return SimpleNamespace(
        cluster_spec=tf.train.ClusterSpec(spec),
        task_type=task_type,
        task_id=0,
        session_creation_timeout_secs=5,
        session_config=None,
        protocol=None,
    )


def test_ps_ends_when_training_is_over_and_nobody_answers_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "_SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(session, "_PROBE_SECONDS", 0.2)
    session._wait_for_reports(cluster_config("ps"), lambda: {"worker-0"})
    assert "chief-0 did not report its end" in caplog.text


@pytest.mark.slow
def test_end_is_reported_to_a_ps_that_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_REPORT_SECONDS", 1.0)
    config = cluster_config("worker")
    ps = SimpleNamespace(**{**vars(config), "task_type": "ps"})
    reporting = threading.Thread(
        target=lambda: session.report_end(config, session.start_server(config).target)
    )
    reporting.start()
    reporting.join(2.0)
    server = session.start_server(ps)
    own = tf.ConfigProto(device_filters=["/job:ps/task:0"], operation_timeout_in_ms=20_000)
    with tf.Graph().as_default(), tf.Session(server.target, config=own) as opened:
        assert opened.run(session._make_queue(0).dequeue()) == b"worker-0"
    reporting.join()
