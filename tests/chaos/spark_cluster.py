"""A Spark cluster on this machine: a master and two workers, each a process, and each worker on its own host address.

Spark starts no speculative attempt on the host of the first one, so `local-cluster` has none: the workers here have
different loopback addresses. They outlive the drivers, as in a real cluster.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from seawall.io.process.java import prepare_spark

#: How long a process may take to start or to end.
PATIENCE_S = 120

#: For processes that live for seconds: no optimizing compiler and no verification of Spark's classes, which would take
#: a sixth of their start.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

_EXECUTOR = b"CoarseGrainedExecutorBackend"


def children() -> dict[int, list[int]]:
    """Processes of this machine, by their parents."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The program name is in brackets and may contain brackets.
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                found.setdefault(int(parent), []).append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one, those nearest to it first."""
    by_parent, found = children(), [pid]
    for each in found:
        found += by_parent.get(each, [])
    return found[1:]


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants: first the process itself, which could start others."""
    below = descendants(process.pid)
    process.kill()
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


class SparkCluster:
    """The processes of a cluster, in a folder."""

    def __init__(self, folder: Path, cores: int) -> None:
        import pyspark

        self._folder = folder
        #: Of each worker: tasks at once, each of which has several Python processes of its own.
        self._cores = cores
        self._environ = dict(os.environ)
        prepare_spark(self._environ)
        self._environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
        self._environ |= {
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            # Executors that are killed are no reason to give an application up, and one that is held up is not gone.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1 -Dspark.worker.timeout=300",
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> None:
        folder = self._folder
        folder.mkdir()
        self._launch("master", "127.0.0.1")
        self.url = self._await_url(folder / "master.log")
        for host in ("127.0.0.1", "127.0.0.2"):
            place = ["--cores", str(self._cores), "--memory", "2g", "--work-dir", str(folder / f"work-{host}")]
            self._launch("worker", host, *place, self.url)

    def executors(self) -> list[int]:
        """The executors that run now, for whichever driver."""
        found = []
        for worker in self._processes[1:]:
            for pid in descendants(worker.pid):
                with suppress(OSError):
                    if _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
        return found

    def _launch(self, role: str, host: str, *arguments: str) -> None:
        program = Path(self._environ["SPARK_HOME"]) / "bin" / "spark-class"
        command = [str(program), f"org.apache.spark.deploy.{role}.{role.capitalize()}", "--host", host]
        command += ["--port", "0", "--webui-port", "0", *arguments]
        environ = self._environ | {"SPARK_LOCAL_IP": host}
        path = self._folder / (f"{role}.log" if role == "master" else f"{role}-{host}.log")
        with path.open("wb") as said:
            self._processes.append(subprocess.Popen(command, env=environ, stdout=said, stderr=subprocess.STDOUT))

    def _await_url(self, path: Path) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not (match := re.search(r"Starting Spark master at (spark://[\d.]+:\d+)", path.read_text())):
            assert self._processes[0].poll() is None, path.read_text()
            assert time.monotonic() < deadline, path.read_text()
            time.sleep(0.05)
        return match[1]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            kill_tree(process)
