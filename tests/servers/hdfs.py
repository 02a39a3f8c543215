"""A real HDFS on this machine: a NameNode and a DataNode in a temporary directory.

`make test-all` downloads their jars to build/hdfs; PHALANX_HADOOP_JARS names another directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

JARS = Path(os.environ.get("PHALANX_HADOOP_JARS") or Path(__file__).parents[2] / "build/hdfs")

SETTINGS = {
    "fs.defaultFS": "hdfs://127.0.0.1:{port}",
    "dfs.namenode.name.dir": "{directory}/name",
    "dfs.datanode.data.dir": "{directory}/data",
    "dfs.namenode.http-address": "127.0.0.1:0",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
    "dfs.webhdfs.enabled": "false",
    "dfs.replication": "1",
    "dfs.blocksize": "1048576",
    "dfs.permissions.enabled": "false",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "hadoop.security.authentication": "simple",
}

# The packages of Java 17 that Hadoop 2.7 needs access to.
OPENED = ["java.lang", "java.util", "java.io", "java.net", "java.nio", "java.lang.reflect"]


def why_not() -> str | None:
    """Return why HDFS cannot be started here, or None."""
    if shutil.which("java") is None:
        return "java not installed (Debian: openjdk-17-jre-headless)"
    if not list(JARS.glob("hadoop-hdfs-*.jar")):
        return f"the jars of Hadoop's servers are not in {JARS}: make build/hdfs"
    return None


@contextlib.contextmanager
def running_hdfs(directory: Path) -> Iterator[str]:
    """Start a NameNode and a DataNode, and yield their address, as in hdfs://127.0.0.1:8020."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = directory / "conf"
    for name in ("hdfs", "datanode", "secondary"):
        (configuration / "webapps" / name).mkdir(parents=True)
    text = "".join(
        f"<property><name>{name}</name>"
        f"<value>{value.format(port=port, directory=directory)}</value></property>\n"
        for name, value in SETTINGS.items()
    )
    for file in ("core-site.xml", "hdfs-site.xml"):
        (configuration / file).write_text(f"<configuration>\n{text}</configuration>\n")
    _run(directory, "namenode.NameNode", "-format", "-force").wait(240)
    servers: list[subprocess.Popen[bytes]] = []
    try:
        servers.append(_run(directory, "namenode.NameNode"))
        servers.append(_run(directory, "datanode.DataNode"))
        _wait(directory, servers, f"hdfs://127.0.0.1:{port}")
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        for server in reversed(servers):
            server.terminate()
        for server in servers:
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _run(directory: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    log = directory / f"{name}{''.join(arguments)}.log"
    with log.open("wb") as output:
        return subprocess.Popen(
            [
                "java",
                "-Xmx256m",
                *opened,
                f"-Dhadoop.log.dir={directory}",
                "-cp",
                f"{directory / 'conf'}:{JARS}/*",
                f"org.apache.hadoop.hdfs.server.{name}",
                *arguments,
            ],
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _wait(directory: Path, servers: list[subprocess.Popen[bytes]], url: str) -> None:
    """Wait until a file can be written."""
    from phalanx.records.storage import write_bytes

    deadline = time.monotonic() + 300
    while True:
        try:
            write_bytes(f"{url}/ready", b"yes")
            return
        except Exception as error:
            ended = [server.poll() for server in servers]
            if time.monotonic() > deadline or any(code is not None for code in ended):
                logs = "".join(path.read_text()[-2000:] for path in directory.glob("*.log"))
                raise AssertionError(f"no HDFS ({error}), {ended}:\n{logs}") from None
            time.sleep(0.5)
