"""The real server on a thread of its own, over a data directory, for clients that wait or have a loop of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Self, TypeVar

import uvloop

from seawall.engine.served_log import ServedLog
from seawall.engine.settings import StoreSettings
from seawall.limits import KIB
from seawall.server.context import ServerContext, ServerSettings
from seawall.server.ingest import Ingest
from seawall.server.listener import Listener
from seawall.server.lwp2_session import Lwp2Session
from seawall.server.topic_commands import TopicCommands

Result = TypeVar("Result")

SMALL = StoreSettings(wal_file_size=4096 * KIB, ballast_size=4 * KIB)


class RealServer:
    """Serves a directory from `start` to `stop`, on the same port every time."""

    def __init__(self, path: Path, settings: ServerSettings | None = None) -> None:
        self._path = path
        self._settings = settings or ServerSettings()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"seawall://127.0.0.1:{self.port}"

    def start(self) -> None:
        started = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._serve(started))
            except BaseException as error:
                failures.append(error)
                started.set()
                raise

        self._thread = threading.Thread(target=run, name="server")
        self._thread.start()
        assert started.wait(60)
        assert not failures, failures

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with ServedLog(self._path, SMALL) as log:
            commands = TopicCommands(log)
            context = ServerContext(
                log, Ingest(log, self._loop.call_soon), self._settings, answer_shared=commands.carry_out
            )
            self._log = log
            self._listener = listener = Listener({2: lambda connection: Lwp2Session(context, connection)})
            _, self.port = await listener.listen("127.0.0.1", self.port)
            started.set()
            await self._end.wait()
            listener.stop()
            self._cut()
            while listener.connections:
                await asyncio.sleep(0)

    def _cut(self) -> None:
        for connection in list(self._listener.connections):
            connection.abort()

    def cut_all(self) -> None:
        """End every connection, and keep listening."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cut)

    def run(self, work: Callable[[ServedLog], Coroutine[None, None, Result]]) -> Result:
        """Do something with the log of the server."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(self._log), self._loop).result(60)

    def stop(self) -> None:
        if self._thread is not None:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
