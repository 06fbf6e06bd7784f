"""Real servers for clients: a node on a thread, with access to its log and connections, and a node in a process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from ssl import SSLContext
from typing import Self, TypeVar

import uvloop

from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.settings import StoreSettings
from seawall.limits import KIB
from seawall.server.connection.access import Access
from seawall.server.event_loop import EventLoop
from seawall.server.node import NodeSettings, start_node
from seawall.server.pressure import Memory

Result = TypeVar("Result")

SMALL = StoreSettings(wal_file_size=4096 * KIB, ballast_size=4 * KIB)


class FakeMemory:
    """Memory whose use a test sets, in percent."""

    limit = 1 << 30

    def __init__(self) -> None:
        self.percent = 10

    def used(self) -> int:
        return self.limit * self.percent // 100


class RealServer:
    """Serves a directory from `start` to `stop`, on the same port every time."""

    def __init__(
        self,
        path: Path,
        access: Access | None = None,
        memory: Memory | None = None,
        *,
        tls: SSLContext | None = None,
        has_uvloop: bool = True,
        event_loops: int = 1,
    ) -> None:
        self._path = path
        self._access = access
        self._memory = memory
        self._tls = tls
        self._event_loops = event_loops
        self._make_loop = uvloop.new_event_loop if has_uvloop else asyncio.new_event_loop
        self._thread: threading.Thread | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"seawall://127.0.0.1:{self.port}"

    def start(self) -> None:
        started = threading.Event()

        def run() -> None:
            try:
                with asyncio.Runner(loop_factory=self._make_loop) as runner:
                    runner.run(self._serve(started))
            finally:
                started.set()

        self._thread = threading.Thread(target=run, name="server")
        self._thread.start()
        assert started.wait(60)

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._node = await start_node(
            self._path,
            NodeSettings(port=self.port, tls=self._tls, event_loops=self._event_loops),
            store=SMALL,
            access=self._access,
            memory=self._memory,
        )
        self.port = int(self._node.address.rpartition(":")[2])
        started.set()
        await self._end.wait()
        await self._node.drain(20)

    def cut_all(self) -> None:
        """Cut every connection, and keep listening."""
        for event_loop in self._node.event_loops:
            event_loop.loop.call_soon_threadsafe(_cut, event_loop)

    def run(self, work: Callable[[ServedLog], Coroutine[None, None, Result]]) -> Result:
        """Run a coroutine with the log of the server, on its loop."""
        return asyncio.run_coroutine_threadsafe(work(self._node.log), self._loop).result(60)

    @property
    def connection_counts(self) -> list[int]:
        """The number of connections of each event loop."""
        return [len(event_loop.listener.connections) for event_loop in self._node.event_loops]

    @property
    def counts(self) -> dict[str, int]:
        """The counters of the node."""
        return self._node.counts

    def stop(self) -> None:
        """Shut down in order: requests in flight are answered, and clients are notified."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _cut(event_loop: EventLoop) -> None:
    for connection in list(event_loop.listener.connections):
        connection.abort()


class ServerProcess:
    """`seawall serve` in a process that can be killed and started again on its port."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self._data = data
        self._arguments = arguments
        self._run_file = data.parent / "run.json"
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"seawall://127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "seawall", "serve", "--data", str(self._data), "--port", str(self._port)]
        command += ["--run-file", str(self._run_file), *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), self._process.communicate()[1]
        self._port = int(json.loads(self._run_file.read_text())["lwp"].rpartition(":")[2])

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        """Shut down in order, which frees its shared memory."""
        assert self._process is not None
        self._process.terminate()
        self._process.communicate()
