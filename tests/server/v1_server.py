"""A server of version 1 for tests: a listener on a real port, over a real log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from watched import WatchedLog, WatchedThread

from seawall.config import PastEnd
from seawall.engine.store.settings import StoreSettings
from seawall.limits import KIB, MIB
from seawall.server.connection.access import Access
from seawall.server.connection.listener import Listener
from seawall.server.connection.session import ConnectionLimits
from seawall.server.lwp1.session import Lwp1Service
from seawall.server.lwp2.topic_commands import TopicCommands
from seawall.server.publish.ingest import Ingest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

SMALL = StoreSettings(wal_file_size=8 * MIB, ballast_size=4 * KIB)


@dataclass
class Served:
    """The parts of the server that a test may use."""

    log: WatchedLog
    service: Lwp1Service
    listener: Listener
    address: tuple[str, int]
    publish_thread: WatchedThread

    async def attached(self) -> None:
        """Wait until the publish thread owns the only connection."""
        await self.publish_thread.until(1)


@asynccontextmanager
async def serving(
    path: Path,
    *,
    access: Access | None = None,
    past_end: PastEnd = PastEnd.ERROR,
    bounds: ConnectionLimits | None = None,
    connections_max: int = 100,
) -> AsyncIterator[Served]:
    async with WatchedLog(path / "data", SMALL) as log:
        publish_thread = WatchedThread(log)
        ingest = Ingest(log, asyncio.get_running_loop(), publish_thread=publish_thread)
        log.on_failed = ingest.fail
        service = Lwp1Service(log, ingest, TopicCommands(log), access=access, past_end=past_end)
        listener = Listener({1: service}, bounds=bounds, connections_max=connections_max, publish_thread=publish_thread)
        try:
            yield Served(log, service, listener, await listener.listen("127.0.0.1", 0), publish_thread)
        finally:
            listener.stop()
            # First, so that the thread has returned every connection before it is closed.
            await asyncio.to_thread(publish_thread.close)
            for connection in list(listener.connections):
                connection.abort()
            # The loop calls `connection_lost` of each in its next iteration.
            await asyncio.sleep(0)


def served(
    loop_factory: LoopFactory | None,
    path: Path,
    work: Callable[[Served], Awaitable[None]],
    *,
    access: Access | None = None,
    past_end: PastEnd = PastEnd.ERROR,
    bounds: ConnectionLimits | None = None,
    connections_max: int = 100,
) -> None:
    """Run a coroutine against a server, on a loop of one kind."""

    async def main() -> None:
        options = serving(path, access=access, past_end=past_end, bounds=bounds, connections_max=connections_max)
        async with options as server:
            await work(server)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
