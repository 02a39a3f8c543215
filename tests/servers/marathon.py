"""A fake of Marathon and a Mesos agent, which stores groups and runs their apps as processes.

An app is a process of this machine. As in Marathon, it is restarted whenever it ends, only failures
are recorded, and health checks of the kind COMMAND run beside it.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

FRAMEWORK = "f-0001"
TOKEN = "let-me-in"


class App:
    """One app with one instance."""

    def __init__(self, directory: Path, image: Path, definition: dict[str, Any]) -> None:
        self.definition = definition
        self.directory = directory
        self.image = image
        self.failure: dict[str, Any] | None = None
        self.ending_since: float | None = None
        self.health: list[dict[str, Any]] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.task = ""

    def start(self) -> None:
        name = self.definition["id"].strip("/").replace("/", "_")
        self.task = f"{name}.{uuid.uuid4().hex[:8]}"
        self.health = []
        sandbox = self.directory / self.task
        sandbox.mkdir()
        [port] = self.definition["portDefinitions"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ = {
            "PATH": path,
            "MESOS_SANDBOX": str(sandbox),
            "PORT0": str(port["port"]),
            **self.definition.get("env", {}),
        }
        with (sandbox / "stdout").open("ab") as output:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", self.definition["cmd"]],
                cwd=self.image,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                start_new_session=True,
            )

    def look(self) -> bool:
        """Do what Marathon does periodically; return False when the app is removed."""
        if self.ending_since is not None:
            grace = self.definition.get("taskKillGracePeriodSeconds", 3)
            if time.monotonic() > self.ending_since + grace:
                self.send(signal.SIGKILL)
            return self.process is not None and self.process.poll() is None
        if self.definition.get("cpus", 1) > 16:
            return True
        if self.process is None:
            self.start()
            return True
        code = self.process.poll()
        if code is not None:
            if code:
                said = f"status {code}" if code > 0 else f"signal {-code}"
                self.failure = {
                    "state": "TASK_FAILED",
                    "taskId": self.task,
                    "host": "127.0.0.1",
                    "message": f"Command {'exited with' if code > 0 else 'terminated with'} {said}",
                }
            self.start()
            return True
        for check in self.definition["healthChecks"]:
            if check["protocol"] == "COMMAND":
                command = ["/bin/sh", "-c", check["command"]["value"]]
                done = subprocess.run(command, env=self.environ, check=False, timeout=120)
                self.health = [{"alive": done.returncode == 0, "consecutiveFailures": 0}]
        return True

    def end(self) -> None:
        if self.ending_since is None:
            self.ending_since = time.monotonic()
            self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def describe(self) -> dict[str, Any]:
        tasks = []
        if self.process is not None:
            task = {"id": self.task, "host": "127.0.0.1", "state": "TASK_RUNNING"}
            tasks = [{**task, "healthCheckResults": self.health}]
        failure = {"lastTaskFailure": self.failure} if self.failure else {}
        return {**self.definition, "tasks": tasks, **failure}


class Marathon:
    """The state of the fake server."""

    def __init__(self, directory: Path, image: Path) -> None:
        self.directory = directory
        self.image = image
        self.apps: dict[str, App] = {}
        self.lock = threading.RLock()
        self.stopping = threading.Event()

    def control(self) -> None:
        while not self.stopping.is_set():
            with self.lock:
                self.apps = {name: app for name, app in self.apps.items() if app.look()}
            time.sleep(0.05)

    def stop(self) -> None:
        self.stopping.set()
        for app in self.apps.values():
            app.send(signal.SIGKILL)


class Handler(http.server.BaseHTTPRequestHandler):
    """The part of the API that the launcher uses, and the files of the agent."""

    marathon: Marathon

    def do_POST(self) -> None:
        group = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_stranger():
            return
        with self.marathon.lock:
            if any(name.startswith(group["id"] + "/") for name in self.marathon.apps):
                message = f"Group {group['id']} is already created. Use PUT to change this group."
                self._answer(409, {"message": message})
                return
            for each in group["apps"]:
                app = App(self.marathon.directory, self.marathon.image, each)
                self.marathon.apps[each["id"]] = app
        self._answer(201, {"version": "1", "deploymentId": "1"})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/files/read":
            self._read_file()
        elif self._is_stranger():
            return
        elif path == "/v2/info":
            self._answer(200, {"frameworkId": FRAMEWORK})
        elif path == "/v2/queue":
            self._answer(200, {"queue": self._queue()})
        else:
            app = self.marathon.apps.get("/" + path.removeprefix("/v2/apps/").strip("/"))
            if app is None:
                self._answer(404, {"message": f"App '{path}' does not exist"})
            else:
                self._answer(200, {"app": app.describe()})

    def do_DELETE(self) -> None:
        if self._is_stranger():
            return
        kind, _, name = unquote(urlsplit(self.path).path).removeprefix("/v2/").partition("/")
        name = "/" + name.strip("/")
        with self.marathon.lock:
            chosen = [
                app
                for each, app in self.marathon.apps.items()
                if each == name or (kind == "groups" and each.startswith(name + "/"))
            ]
            for app in chosen:
                app.end()
        if chosen:
            self._answer(200, {"version": "2", "deploymentId": "2"})
        else:
            self._answer(404, {"message": f"{kind} '{name}' does not exist"})

    def _queue(self) -> list[dict[str, Any]]:
        rejected = [
            {"reason": "InsufficientMemory", "declined": 0, "processed": 3},
            {"reason": "InsufficientCpus", "declined": 3, "processed": 3},
        ]
        summary = {"rejectSummaryLastOffers": rejected}
        return [
            {"app": {"id": name}, "processedOffersSummary": summary}
            for name, app in self.marathon.apps.items()
            if app.process is None
        ]

    def _read_file(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        prefix, suffix = f"/frameworks/{FRAMEWORK}/executors/", "/runs/latest/stdout"
        task = query["path"][0].removeprefix(prefix).removesuffix(suffix)
        content = (self.marathon.directory / task / "stdout").read_bytes()
        start = int(query["offset"][0])
        text = content[start : start + int(query["length"][0])].decode()
        self._answer(200, {"data": text, "offset": start})

    def _is_stranger(self) -> bool:
        if self.headers.get("Authorization") == f"token={TOKEN}":
            return False
        self._answer(401, {"message": "Invalid username or password."})
        return True

    def _answer(self, code: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


@contextlib.contextmanager
def running(directory: Path, image: Path) -> Iterator[tuple[Marathon, dict[str, str], int]]:
    """Start the server; yield its state, the variables that clients need, and its port."""
    marathon = Marathon(directory, image)
    handler = type("BoundHandler", (Handler,), {"marathon": marathon})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threads = [
        threading.Thread(target=server.serve_forever),
        threading.Thread(target=marathon.control),
    ]
    for thread in threads:
        thread.start()
    port = server.server_address[1]
    variables = {"MARATHON_URL": f"http://127.0.0.1:{port}", "MARATHON_TOKEN": TOKEN}
    try:
        yield marathon, variables, port
    finally:
        server.shutdown()
        marathon.stop()
        for thread in threads:
            thread.join(10)
        server.server_close()
