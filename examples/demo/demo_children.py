"""The child processes of the demo, tied to it by a pipe so that none outlives it, and the server, which can be killed.

Each child has its own process group, so that Ctrl-C in the terminal reaches only the demo, which stops them. Their
standard error goes to one file.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
START_S = 60.0
END_S = 30.0
POLL_S = 0.02


class DemoError(Exception):
    """The demo cannot continue, or a check has failed."""


class ChildLine(NamedTuple):
    """A line of output from a child; the last one is None, at its end."""

    child: Child
    line: list[Any] | None


class Child:
    """A process that runs a file of this directory."""

    def __init__(
        self,
        arguments: Sequence[str],
        output: Path,
        lines: queue.SimpleQueue[ChildLine] | None = None,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        """With `lines`, the child writes one JSON document per line to its standard output, which go to this queue.

        `directory` is its working directory; by default that of the demo.
        """
        command = [sys.executable, str(HERE / arguments[0]), *arguments[1:]]
        with output.open("a") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file if lines is None else subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
                cwd=directory,
                env={**os.environ, **(environ or {})},
            )
        if lines is not None:
            threading.Thread(target=self._read_lines, args=(lines,), daemon=True).start()

    def send(self, line: object) -> None:
        """Send a line of JSON to the child."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL to the child and everything that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reap()

    def end(self) -> None:
        """Send SIGTERM, and SIGKILL if the child does not exit."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.kill()

    def _reap(self) -> None:
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()

    def _read_lines(self, lines: queue.SimpleQueue[ChildLine]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                # A killed child may have written half a line.
                with suppress(json.JSONDecodeError):
                    lines.put(ChildLine(self, json.loads(line)))
        lines.put(ChildLine(self, None))


class Server:
    """`seawall serve` for a directory; a restart uses the same port."""

    def __init__(self, data: Path, fabric: Path, output: Path) -> None:
        self._data = data
        self._fabric = fabric
        self._output = output
        self._run_file = data.with_name("run.json")
        self._port = 0
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"seawall://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the server and wait until it listens."""
        self._run_file.unlink(missing_ok=True)
        arguments = ["demo_tether.py", "serve", "--data", str(self._data), "--listen", f"127.0.0.1:{self._port}"]
        arguments += ["--run-file", str(self._run_file)]
        self._child = Child(arguments, self._output, environ={"SEAWALL_FABRIC_DIRECTORY": str(self._fabric)})
        deadline = time.monotonic() + START_S
        while not self._run_file.exists():
            if not self.is_running or time.monotonic() > deadline:
                raise DemoError("the server does not start")
            time.sleep(POLL_S)
        self._port = int(json.loads(self._run_file.read_text(encoding="utf-8"))["lwp"].rpartition(":")[2])

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self._child is not None and self._child.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL, so that the server cannot write anything more."""
        assert self._child is not None
        self._child.kill()

    def end(self) -> None:
        """Stop the server gracefully, if it runs."""
        if self._child is not None:
            self._child.end()
