"""A served node as a process that is killed, stopped, shut down and restarted, on one port and one directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from seawall.engine.api.open_log import open_log

#: How long a node may take to start or to shut down.
PATIENCE_S = 90

#: Topics of a round: name and settings.
TOPICS: dict[str, dict[str, object]] = {
    "total": {"order": 2, "durability": "fsync"},
    "client": {"order": 5, "durability": "fsync"},
    "quick": {"order": 5, "durability": "disk"},
    "old": {"order": 2, "durability": "fsync"},
}


def make_topics(data: Path) -> None:
    """Create the topics; clients cannot choose all of these settings."""
    with open_log(data) as log:
        for name, settings in TOPICS.items():
            log.create_topic(name, **settings)


class ChaosNode:
    """`seawall serve` over a directory."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.port = 0
        self.starts = 0
        self.arguments = arguments
        self._run_file = data.with_name("run.json")
        self._errors = data.with_name("node.err")
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it was not started"
        return self._process

    def start(self) -> None:
        """Start the node and wait until it listens; after the first start on the same port."""
        command = [sys.executable, "-m", "seawall", "serve", "--data", str(self.data), "--port", str(self.port)]
        command += ["--run-file", str(self._run_file), *self.arguments]
        self._run_file.unlink(missing_ok=True)
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"no node: {self.said()}"
        address = json.loads(self._run_file.read_text())["lwp"]
        self.port = int(address.rpartition(":")[2])
        self.starts += 1

    def said(self) -> str:
        """The standard error output of all its lives."""
        return self._errors.read_text()

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code."""
        self.process.communicate(timeout=timeout_s)
        return self.process.returncode

    def kill(self) -> None:
        self.tell(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """Shut the node down in order; returns its exit code."""
        self.tell(signal.SIGTERM)
        return self.wait()

    @property
    def resident_kib(self) -> int:
        """Resident memory of the process."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()
