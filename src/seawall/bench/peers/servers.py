"""Run the server of a system: start, kill, pause, and the memory and disk space that it takes.

A server is a process, or several, in a session of its own, with a directory of its own that is removed at the end. It
never outlives this process: a guard (role `guard` of `subjects/second_process.py`) kills it when this process is gone.

While a server is not measured, it is paused (SIGSTOP), so that it takes no processor time from the others.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Final

from seawall.bench.peers.clients.base import HOST, wait_for_port
from seawall.bench.peers.system import Setup, System
from seawall.bench.subjects.second_process import EXIT_SECONDS_MAX, child
from seawall.fabric.naming import SHARED_MEMORY_DIRECTORY

#: Longest wait for a server to listen.
START_SECONDS_MAX: Final = 120.0
#: Longest wait until the disk space of a server stays the same, and how long it must do so.
_SETTLE_SECONDS_MAX: Final = 30.0
_SETTLE_SECONDS: Final = 1.0
_SAMPLE_SECONDS: Final = 0.1
_LOG_TAIL: Final = 2_000


class Server:
    """One server of a system, in a directory of its own. Made by `prepared`."""

    def __init__(self, system: System, programs: Path, setup: Setup, guard: subprocess.Popen[bytes]) -> None:
        self.system: Final = system
        self.setup: Final = setup
        self._programs = programs
        self._guard = guard
        self._log = setup.directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port to connect to."""
        return self.setup.port

    def start(self) -> None:
        """Start the process; returns at once."""
        command = self.system.command(self._programs, self.setup)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.setup.directory,
                start_new_session=True,
            )
        self._tell_guard(self._process.pid)

    def wait_until_listening(self) -> None:
        """Wait until the server accepts connections; an error contains the end of its log."""
        try:
            wait_for_port(self.port, START_SECONDS_MAX, lambda: self._running.poll() is None)
        except (TimeoutError, ChildProcessError) as error:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
            raise ChildProcessError(f"{self.system.name} did not start: {error}; its log ends with: {tail}") from error

    def kill(self) -> None:
        """Kill all processes of the server as `kill -9` does, and wait for them; does nothing if none runs."""
        process, self._process = self._process, None
        if process is not None:
            self._signal(process.pid, signal.SIGKILL)
            process.wait(EXIT_SECONDS_MAX)
            self._tell_guard(-process.pid)

    def pause(self) -> None:
        """Stop all processes of the server until `resume`."""
        self._signal(self._running.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server run."""
        self._signal(self._running.pid, signal.SIGCONT)

    def memory_bytes(self) -> int:
        """Memory of all processes of the server; what several share counts once (PSS)."""
        return sum(map(_proportional_size, _session(self._running.pid)))

    @contextmanager
    def peak_memory(self) -> Iterator[list[int]]:
        """Sample the memory in the background; yields a list whose only element is the highest so far."""
        peak = [self.memory_bytes()]
        is_done = threading.Event()

        def sample() -> None:
            while not is_done.wait(_SAMPLE_SECONDS):
                peak[0] = max(peak[0], self.memory_bytes())

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield peak
        finally:
            is_done.set()
            sampler.join()

    def settled_disk_bytes(self) -> int:
        """Disk space of the data directory, once it has not changed for a while."""
        size, waited = disk_bytes(self.setup.data), 0.0
        while waited < _SETTLE_SECONDS_MAX:
            sleep(_SETTLE_SECONDS)
            waited += _SETTLE_SECONDS
            before, size = size, disk_bytes(self.setup.data)
            if size == before:
                break
        return size

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ChildProcessError(f"{self.system.name} does not run")
        return self._process

    def _tell_guard(self, number: int) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"%d\n" % number)
        self._guard.stdin.flush()

    def _signal(self, process_id: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process_id, number)


@contextmanager
def prepared(
    system: System, programs: Path, directory: Path, *, synced: bool, is_paused: bool = False
) -> Iterator[Server]:
    """A server that is set up in a new directory and not yet started; killed and removed on exit.

    `synced` and `is_paused` are those of `Setup`.
    """
    prefix = f"seawall-bench-{system.key}-"
    memory = Path(SHARED_MEMORY_DIRECTORY)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=directory)).resolve()
    shared = Path(tempfile.mkdtemp(prefix=prefix, dir=memory if memory.exists() else folder))
    setup = Setup(folder, shared, *_free_ports(), synced, is_paused)
    try:
        system.prepare(programs, setup)
        with child("guard") as guard:
            server = Server(system, programs, setup, guard)
            try:
                yield server
            finally:
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)


@contextmanager
def running(
    system: System, programs: Path, directory: Path, *, synced: bool, is_paused: bool = False
) -> Iterator[Server]:
    """A new server that accepts connections."""
    with prepared(system, programs, directory, synced=synced, is_paused=is_paused) as server:
        server.start()
        server.wait_until_listening()
        yield server


def disk_bytes(path: Path) -> int:
    """Allocated bytes of all files below a directory. Files may vanish meanwhile."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return size


def _free_ports() -> tuple[int, int]:
    """Two ports that nobody uses now."""
    with socket.create_server((HOST, 0)) as first, socket.create_server((HOST, 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]


def _session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(entry.name)) == leader:
                    found.append(int(entry.name))
    return found


def _proportional_size(process_id: int) -> int:
    """The proportional set size of a process; 0 if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{process_id}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
