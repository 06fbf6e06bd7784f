"""A node: one process with a log, its listeners and all connections, from start to drain.

    start    open the log, offer both protocol versions on a port, tell where
    drain    take no connections, say GOODBYE, answer what is under way, close in order; or give up at a deadline

INV-NODE-DRAINED: a drain that ends in time has answered everything it took, and left nothing to repair.

A crash leaves what was acked in the log; the next start recovers it. This module must not know signals, nor what frames
mean.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Final

from seawall import limits
from seawall.config import Config
from seawall.engine.served_log import ServedLog
from seawall.engine.settings import StoreSettings
from seawall.io.sockets import format_address
from seawall.server.access import Access
from seawall.server.context import ServerContext, ServerSettings
from seawall.server.ingest import Ingest
from seawall.server.listener import Listener, MakeSession
from seawall.server.lwp1_reading import PastEnd
from seawall.server.lwp1_session import Lwp1Service
from seawall.server.lwp2_session import Lwp2Session
from seawall.server.session import ConnectionLimits
from seawall.server.topic_commands import TopicCommands
from seawall.wire.codes import VERSION_1, VERSION_2

#: How often a drain looks whether everybody has gone.
_LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where a node listens, and how it treats who comes."""

    host: str = "127.0.0.1"
    port: int = limits.LWP_PORT
    connections_max: int = limits.CONNECTIONS_MAX
    past_end: PastEnd = PastEnd.ERROR
    server: ServerSettings = field(default_factory=ServerSettings)
    bounds: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: How connections are encrypted; None if they are not.
    tls: SSLContext | None = None


class Node:
    """A running node. Made by `start`."""

    def __init__(self, log: ServedLog, context: ServerContext, listener: Listener, address: str) -> None:
        self.log = log
        self.address = address
        self._context = context
        self._listener = listener
        #: Set when the log cannot be written any more: whoever runs the node ends it.
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        log.on_failed = self._fail

    @property
    def connection_count(self) -> int:
        """Connections that are there."""
        return len(self._listener.connections)

    @property
    def counts(self) -> dict[str, int]:
        """How often connections were refused or ended, by cause."""
        return dict(self._listener.counts)

    async def drain(self, timeout_s: float) -> bool:
        """End in order; whether everything was answered in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        self._listener.stop()
        for connection in list(self._listener.connections):
            connection.drain(int(timeout_s * 1000))
        while self._listener.connections and loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)
        is_drained = not self._listener.connections
        for connection in list(self._listener.connections):
            connection.abort()
        await self.log.close()
        return is_drained

    def _fail(self, error: BaseException) -> None:
        """Nothing can be written any more: who publishes is told, and so is whoever runs the node."""
        self._context.ingest.fail(error)
        if not self.failure.done():
            self.failure.set_result(error)


async def start_node(
    data: str | Path,
    settings: NodeSettings | None = None,
    *,
    config: Config | None = None,
    store: StoreSettings | None = None,
    access: Access | None = None,
) -> Node:
    """Open a data directory, made if it is not there, and serve it."""
    own, allowed = settings or NodeSettings(), access or Access()
    log = ServedLog(data, store, config)
    await log.open()
    try:
        commands = TopicCommands(log)
        ingest = Ingest(log, asyncio.get_running_loop().call_soon)
        context = ServerContext(log, ingest, commands, own.server, allowed)
        versions: dict[int, MakeSession] = {
            VERSION_1: Lwp1Service(log, ingest, commands, access=allowed, past_end=own.past_end),
            VERSION_2: partial(Lwp2Session, context),
        }
        listener = Listener(versions, bounds=own.bounds, connections_max=own.connections_max)
        host, port = await listener.listen(own.host, own.port, own.tls)
        return Node(log, context, listener, format_address(host, port))
    except BaseException:
        await log.close()
        raise
