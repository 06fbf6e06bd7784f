"""A listener on a real port, in front of a real log, for tests of version 1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seawall.config import PastEnd
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.settings import StoreSettings
from seawall.limits import KIB, MIB
from seawall.server.connection.access import Access
from seawall.server.connection.listener import Listener
from seawall.server.connection.session import ConnectionLimits
from seawall.server.lwp1.session import Lwp1Service
from seawall.server.lwp2.topic_commands import TopicCommands
from seawall.server.publish.ingest import Ingest
from seawall.server.publish.publish_thread import Attachment, PublishThread

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

SMALL = StoreSettings(wal_file_size=8 * MIB, ballast_size=4 * KIB)


class WatchedThread(PublishThread):
    """A publish thread that says when it has taken a connection over."""

    def __init__(self, log: ServedLog) -> None:
        self.has_attached = asyncio.Event()
        super().__init__(log)

    def attach(self, *arguments: Any, **named: Any) -> Attachment | None:
        made = super().attach(*arguments, **named)
        self.has_attached.set()
        return made


@dataclass
class Served:
    """What a test may look at."""

    log: ServedLog
    service: Lwp1Service
    listener: Listener
    address: tuple[str, int]
    publish_thread: WatchedThread

    async def attached(self) -> None:
        """Wait until the publish thread has a connection."""
        while not self.publish_thread._attached:
            self.publish_thread.has_attached.clear()
            await self.publish_thread.has_attached.wait()


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
        publish_thread = WatchedThread(log)
        ingest = Ingest(log, asyncio.get_running_loop(), publish_thread=publish_thread)
        log.on_failed = ingest.fail
        service = Lwp1Service(log, ingest, TopicCommands(log), access=access, past_end=past_end)
        listener = Listener({1: service}, bounds=bounds, connections_max=connections_max, publish_thread=publish_thread)
        try:
            yield Served(log, service, listener, await listener.listen("127.0.0.1", 0), publish_thread)
        finally:
            listener.stop()
            # First, so that loop and thread have let go of every connection when it is ended.
            await asyncio.to_thread(publish_thread.close)
            for connection in list(listener.connections):
                connection.abort()
            # The loop calls `connection_lost` of each in its next turn.
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
