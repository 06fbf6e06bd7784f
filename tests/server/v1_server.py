"""A listener on a real port, in front of a real log, for tests of version 1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from seawall.config import PastEnd
from seawall.engine.served_log import ServedLog
from seawall.engine.settings import StoreSettings
from seawall.limits import KIB, MIB
from seawall.server.access import Access
from seawall.server.ingest import Ingest
from seawall.server.listener import Listener
from seawall.server.lwp1_session import Lwp1Service
from seawall.server.publish_thread import PublishThread
from seawall.server.session import ConnectionLimits
from seawall.server.topic_commands import TopicCommands

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

SMALL = StoreSettings(wal_file_size=8 * MIB, ballast_size=4 * KIB)


@dataclass
class Served:
    """What a test may look at."""

    log: ServedLog
    service: Lwp1Service
    listener: Listener
    address: tuple[str, int]
    publish_thread: PublishThread

    async def attached(self) -> None:
        """Wait until the publish thread has a connection."""
        while not self.publish_thread._attached:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(
    path: Path,
    *,
    access: Access | None = None,
    past_end: PastEnd = PastEnd.ERROR,
    bounds: ConnectionLimits | None = None,
    connections_max: int = 100,
) -> AsyncIterator[Served]:
    async with ServedLog(path / "data", SMALL) as log:
        publish_thread = PublishThread(log)
        ingest = Ingest(log, asyncio.get_running_loop(), publish_thread=publish_thread)
        log.on_failed = ingest.fail
        service = Lwp1Service(log, ingest, TopicCommands(log), access=access, past_end=past_end)
        listener = Listener({1: service}, bounds=bounds, connections_max=connections_max, publish_thread=publish_thread)
        try:
            yield Served(log, service, listener, await listener.listen("127.0.0.1", 0), publish_thread)
        finally:
            listener.stop()
            for connection in list(listener.connections):
                connection.abort()
            while listener.connections:
                await asyncio.sleep(0)
            await asyncio.to_thread(publish_thread.close)


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
