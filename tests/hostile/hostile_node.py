"""`seawall serve` as a process under attack: started with limits, measured from outside, stopped or killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

#: How long a node may take to start or to stop before that is a failure.
PATIENCE_S = 90


class HostileNode:
    """A node over one directory, on the same port after each start."""

    def __init__(
        self, data: Path, *arguments: str, descriptors: int | None = None, keep_run_file: bool = False
    ) -> None:
        """`keep_run_file` leaves in place what a test has put under the name of the run file."""
        self.data = data
        self.port = 0
        self.arguments = arguments
        self._descriptors = descriptors
        self._keep_run_file = keep_run_file
        self._run_file = data.with_name(f"{data.name}-run.json")
        self._errors = data.with_name(f"{data.name}-stderr.txt")
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the node was not started"
        return self._process

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        return f"seawall://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the node and wait until it listens."""
        command = [sys.executable, "-m", "seawall", "serve", "--data", str(self.data), "--port", str(self.port)]
        command += ["--run-file", str(self._run_file), *self.arguments]
        if self._descriptors is not None:
            # The shell sets the hard and the soft limit, and becomes the node.
            command = ["sh", "-c", f'ulimit -n {self._descriptors}; exec "$@"', "sh", *command]
        if not self._keep_run_file:
            self._run_file.unlink(missing_ok=True)
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), f"the node did not start: {self.stderr}"
        self.port = int(json.loads(self._run_file.read_text())["lwp"].rpartition(":")[2])

    @property
    def stderr(self) -> str:
        """Everything that the node wrote to standard error, over all starts."""
        return self._errors.read_text()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def descriptor_count(self) -> int:
        """Descriptors that the node has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def resident_size(self) -> int:
        """Bytes of memory that the node has resident: its own pages, without mapped files."""
        return self._status_size("RssAnon")

    def _status_size(self, name: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"/proc has no {name}")

    def stop(self) -> int:
        """Stop the node in order; its exit code."""
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def kill(self) -> None:
        """Kill the node, if it still runs."""
        if self._process is not None and self._process.stdout is not None and not self._process.stdout.closed:
            self._process.kill()
            self._process.communicate()


class StartNode(Protocol):
    """Starts a node over a directory of the test."""

    def __call__(self, *arguments: str, data: str = "data", descriptors: int | None = None) -> HostileNode: ...
