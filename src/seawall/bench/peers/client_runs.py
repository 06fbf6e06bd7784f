"""Start client processes and take their figures. A client process is killed when its context is left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, Final

from seawall.bench.peers.client_process import Figures, Options
from seawall.bench.subjects.second_process import EXIT_SECONDS_MAX

#: Far longer than a library takes to stop, and RQ ignores a signal within a second of another.
_REPEAT_SECONDS: Final = 15.0


class ClientRun:
    """A client process that runs."""

    def __init__(self, what: str, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._what = what
        self._process = process
        self._errors = errors

    @property
    def output(self) -> IO[str]:
        """Where the lines of the process come from."""
        assert self._process.stdout is not None
        return self._process.stdout

    def wait_until_ready(self) -> None:
        """Wait for the line that says so."""
        self._line()

    def figures(self) -> Figures:
        """Wait for the figures of the role."""
        found = json.loads(self._line())
        assert isinstance(found, dict)
        return {name: float(value) for name, value in found.items()}

    def stop(self, repeat_seconds: float = _REPEAT_SECONDS) -> None:
        """Let a role that runs until SIGTERM stop, and wait until it has.

        The signal is repeated: a worker of RQ that had just finished a job was seen to go on waiting after one.
        """
        self._process.terminate()
        while not select.select([self.output], [], [], repeat_seconds)[0]:
            self._process.terminate()
        self.figures()

    def check_runs(self) -> None:
        """Raise an error if the process has ended."""
        if self._process.poll() is not None:
            self._line()

    def _line(self) -> str:
        line = self.output.readline()
        if not line:
            self._process.wait(EXIT_SECONDS_MAX)
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines() or ["without a message"]
            # The error itself is the last line of a traceback.
            raise ChildProcessError(f"{self._what} exited: {lines[-1]}")
        return line


@contextmanager
def client(system: str, role: str, options: Options) -> Iterator[ClientRun]:
    """Start a client process; on exit, kill it with all processes that it has started."""
    command = [sys.executable, "-m", "seawall.bench.peers.client_process", system, role, json.dumps(asdict(options))]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process,
    ):
        try:
            yield ClientRun(f"the client of {system} ({role})", process, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(EXIT_SECONDS_MAX)


def run_client(system: str, role: str, options: Options) -> Figures:
    """Run a client process to its end and return its figures."""
    with client(system, role, options) as started:
        return started.figures()
