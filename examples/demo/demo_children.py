"""The processes of the demo: tied to it by a pipe, so that none outlives it, and the server that can be killed.

Each is a session of its own, so Ctrl-C in the terminal is a matter of the demo alone, which ends them. What they write
to standard error goes to one file.
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
LOOK_S = 0.02


class DemoError(Exception):
    """The demo cannot go on, or has found that something is not as promised."""


class Said(NamedTuple):
    """A line of a child; none at its end, which comes last."""

    child: Child
    line: list[Any] | None


class Child:
    """One process that runs a file of this directory."""

    def __init__(
        self,
        arguments: Sequence[str],
        output: Path,
        said: queue.SimpleQueue[Said] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """With `said` its standard output is read: JSON a line."""
        command = [sys.executable, str(HERE / arguments[0]), *arguments[1:]]
        with output.open("a") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file if said is None else subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
                env={**os.environ, **(environ or {})},
            )
        if said is not None:
            threading.Thread(target=self._listen, args=(said,), daemon=True).start()

    def tell(self, line: object) -> None:
        """Send it a line of JSON."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, for it and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reap()

    def end(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.kill()

    def _reap(self) -> None:
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()

    def _listen(self, said: queue.SimpleQueue[Said]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                # One that was killed may have ended within a line.
                with suppress(json.JSONDecodeError):
                    said.put(Said(self, json.loads(line)))
        said.put(Said(self, None))


class Server:
    """`seawall serve` over a directory, always on the same port once it has one."""

    def __init__(self, data: Path, fabric: Path, output: Path) -> None:
        self._data = data
        self._fabric = fabric
        self._output = output
        self._run_file = data.with_name("run.json")
        self._port = 0
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"seawall://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._run_file.unlink(missing_ok=True)
        arguments = ["demo_tether.py", "serve", "--data", str(self._data), "--listen", f"127.0.0.1:{self._port}"]
        arguments += ["--run-file", str(self._run_file)]
        self._child = Child(arguments, self._output, environ={"SEAWALL_FABRIC_DIRECTORY": str(self._fabric)})
        deadline = time.monotonic() + START_S
        while not self._run_file.exists():
            if not self.is_running or time.monotonic() > deadline:
                raise DemoError("the server does not start")
            time.sleep(LOOK_S)
        self._port = int(json.loads(self._run_file.read_text(encoding="utf-8"))["lwp"].rpartition(":")[2])

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._child is not None and self._child.process.poll() is None

    def kill(self) -> None:
        """SIGKILL: it gets no chance to write anything."""
        assert self._child is not None
        self._child.kill()

    def end(self) -> None:
        """End it in order, if it runs."""
        if self._child is not None:
            self._child.end()
